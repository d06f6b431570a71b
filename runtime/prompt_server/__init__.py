"""The prompt phase on one machine: `worker` takes prompt legs from router to first token."""

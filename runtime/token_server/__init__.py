"""The token phase on one machine: `worker` takes token legs from reservation to last token, and whole
requests where both phases run here."""

"""A container whose command runs as a process of this machine."""

import asyncio
import contextlib
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Self

import aiohttp

from cluster.client import Object
from cluster.container import Exit
from cluster.probes import Target, check, first_success, flips, startup_seconds
from cluster.process import tethered
from cluster.sandbox import Sandbox

MESSAGE_BYTES = 2048


class ProcessRun:
    """One process and what it starts; its group is killed when its first process ends."""

    def __init__(
        self,
        container: Object,
        sandbox: Sandbox,
        child: asyncio.subprocess.Process,
        *,
        log: pathlib.Path,
        http: aiohttp.ClientSession,
    ) -> None:
        self._container = container
        self._sandbox = sandbox
        self._child = child
        self._log = log
        ports = {p["name"]: p["containerPort"] for p in container.get("ports", []) if "name" in p}
        self._target = Target(sandbox.ip, ports, self._run_inside, http)

    @classmethod
    async def start(
        cls,
        container: Object,
        sandbox: Sandbox,
        entrypoint: list[str],
        *,
        log: pathlib.Path,
        http: aiohttp.ClientSession,
    ) -> Self:
        """Starts the command; its output is appended to `log`."""
        command = sandbox.command(container, entrypoint)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            child = await asyncio.create_subprocess_exec(
                *tethered(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=sandbox.environment(container),
                cwd=sandbox.working_folder(container),
                start_new_session=True,
            )
        return cls(container, sandbox, child, log=log, http=http)

    async def wait(self) -> Exit:
        code = await self._child.wait()
        self._signal_group(signal.SIGKILL)
        return Exit(code if code >= 0 else 128 - code, self._last_words(code))

    async def attend(self, report: Callable[[bool, bool], None]) -> None:
        report(False, False)
        if startup := self._container.get("startupProbe"):
            try:
                async with asyncio.timeout(startup_seconds(startup)):
                    await first_success(startup, self._target)
            except TimeoutError:
                await self.stop(float(self._grace()))
                return
        async with asyncio.TaskGroup() as probing:
            probing.create_task(self._watch_readiness(report))
            probing.create_task(self._watch_liveness())

    async def stop(self, seconds: float) -> None:
        """The pre-stop hook, SIGTERM, and SIGKILL when `seconds` are over."""
        try:
            async with asyncio.timeout(seconds):
                await self._pre_stop()
                self._signal_child(signal.SIGTERM)
                await self._child.wait()
        except TimeoutError:
            self.kill()
            await self._child.wait()

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    async def _watch_readiness(self, report: Callable[[bool, bool], None]) -> None:
        probe = self._container.get("readinessProbe")
        if probe is None:
            report(True, True)
            return
        report(True, False)
        await first_success(probe, self._target)
        report(True, True)
        async for ready in flips(probe, self._target):
            report(True, ready)

    async def _watch_liveness(self) -> None:
        if probe := self._container.get("livenessProbe"):
            async for alive in flips(probe, self._target):
                if not alive:
                    await self.stop(float(self._grace()))

    async def _pre_stop(self) -> None:
        hook = self._container.get("lifecycle", {}).get("preStop")
        if hook is None:
            return
        if pause := hook.get("sleep"):
            await asyncio.sleep(float(pause["seconds"]))
        else:
            await check({**hook, "timeoutSeconds": self._grace()}, self._target)

    async def _run_inside(self, command: list[str], seconds: float) -> bool:
        """Runs one command as `exec` in the container would; True if it exits with 0."""
        child = await asyncio.create_subprocess_exec(
            *tethered([self._sandbox.localise(word) for word in command]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._sandbox.environment(self._container),
            cwd=self._sandbox.working_folder(self._container),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                return await child.wait() == 0
        except TimeoutError:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

    def _grace(self) -> int:
        return int(self._sandbox.pod["spec"].get("terminationGracePeriodSeconds", 30))

    def _last_words(self, code: int) -> str:
        """The end of the log, if the pod wants it in its status and the process failed."""
        wanted = self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if code == 0 or not wanted:
            return ""
        return self._log.read_bytes()[-MESSAGE_BYTES:].decode(errors="replace")

    def _signal_child(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, number)

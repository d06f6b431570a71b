"""`python -m runtime.machine --config FILE`: run one machine until SIGTERM or SIGINT.

The first signal drains (nothing new, finish what runs within `drain_seconds`), the second ends at once. Exit
status 2: settings or weights that cannot be used; 3: the engine failed beyond repair.
"""

import argparse
import asyncio
import os
import sys
from pathlib import Path

from runtime import log, program
from runtime.config import MachineSettings
from runtime.errors import Failure
from runtime.machine.engines import open_engine
from runtime.machine.machine import Machine
from runtime.machine.observe import observe

logger = log.logger("machine")


def main() -> int:
    parser = argparse.ArgumentParser(prog="runtime.machine", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="a MachineSettings file (JSON)")
    parser.add_argument("--name", help="this machine's name, if the file serves several")
    parser.add_argument("--data-host", help="the address at which peers reach the TCP data port")
    options = parser.parse_args()
    for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before NumPy loads: more BLAS threads only spin
    try:
        settings = MachineSettings.read(options.config)
        if options.name:
            settings = settings.model_copy(update={"name": options.name})
        if options.data_host:
            transfer = settings.transfer.model_copy(update={"data_host": options.data_host})
            settings = settings.model_copy(update={"transfer": transfer})
        log.set_up(machine=settings.name, role=settings.role)
        return asyncio.run(_serve(settings))
    except (ValueError, OSError, Failure) as error:
        print(f"machine: {error}", file=sys.stderr)
        return 2


async def _serve(settings: MachineSettings) -> int:
    came = program.signals()
    engine, pool = await asyncio.to_thread(open_engine, settings)
    machine = Machine(settings, engine, pool)
    address = await machine.start()
    runner = await observe(machine, settings.observe) if settings.observe else None
    logger.info("ready", address=address, model=engine.info.model, kv_blocks=pool.layout.blocks)
    await program.first_of(came.get(), asyncio.shield(machine.broken))
    if not machine.broken.done():
        await program.first_of(came.get(), machine.drain(settings.drain_seconds))
    if runner:
        await runner.cleanup()
    await machine.close()
    return _verdict(machine)


def _verdict(machine: Machine) -> int:
    if not machine.broken.done():
        logger.info("ended")
        return 0
    error = machine.broken.result()
    logger.error("the engine failed", error=f"{type(error).__name__}: {error}")
    return 3


if __name__ == "__main__":
    sys.exit(main())

"""Settings of the programs, as files: rendered by `local` and `controlplane`, read by the same classes.

An unknown key is an error on both sides. Addresses are "host:port" or "unix:/path".
"""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

Role = Literal["prompt", "token", "mixed"]
ClientDisconnect = Literal["stop", "finish"]
DegradedMode = Literal["fail", "mixed", "recompute"]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Parse a JSON file; a problem is a ValueError that names the file, the key and what is expected."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ValueError(f"{path}: {where}: {first['msg']}") from error
        except OSError as error:
            raise ValueError(f"{path}: {error.strerror}") from error


class ModelSettings(_Settings):
    """Which weights to serve. `path`: a Hugging Face folder or a GGUF file. `name`: what clients ask for."""

    name: str
    path: Path
    revision: str = ""


class KvSettings(_Settings):
    """The KV pool of a machine, in bytes, and how many tokens share a block."""

    memory_bytes: int = Field(512 * 2**20, gt=0)
    block_tokens: int = Field(16, gt=0)


class TransferSettings(_Settings):
    """How KV leaves a prompt machine. `auto` takes shared memory on one host, TCP between hosts.

    data_host: where the TCP data port listens. layerwise_above_tokens: batches of at least so many prompt
    tokens go layer by layer (paper section IV-C: 512 on H100)."""

    transport: Literal["auto", "shm", "tcp"] = "auto"
    data_host: str = "127.0.0.1"
    layerwise_above_tokens: int = Field(512, ge=0)
    calibrate: bool = True


class LinkSettings(_Settings):
    """Authenticated connections: every peer must know a key in `secret_file`, one per line, of 32 letters or
    more. The file may be replaced at any time; it is read at every handshake."""

    secret_file: Path
    heartbeat_seconds: float = Field(1.0, gt=0)
    dead_after_seconds: float = Field(10.0, gt=0)


class MachineSettings(_Settings):
    """One machine: one process with one engine."""

    name: str
    role: Role
    listen: str
    observe: str = Field("", description="address of /metrics, /healthz and /readyz; empty for none")
    revision: str = "1"
    engine: Literal["reference", "vllm"] = "reference"
    engine_args: tuple[str, ...] = Field((), description="vLLM's own command-line arguments, as they are")
    model: ModelSettings
    link: LinkSettings
    kv: KvSettings = KvSettings()
    transfer: TransferSettings = TransferSettings()
    prompt_batch_tokens: int = Field(2048, gt=0)
    sequences: int = Field(64, gt=0)
    context_tokens: int = Field(0, ge=0, description="0: what the model allows")
    degraded_mode: DegradedMode = "fail"
    drain_seconds: float = Field(30.0, gt=0, description="at most, for what runs when told to stop")
    cache_dir: Path | None = None


class MachineAddress(_Settings):
    """Where the router finds a machine."""

    name: str
    address: str


class SliceSettings(_Settings):
    """Machines are the endpoints of the EndpointSlices with these labels; `port` names their link port."""

    namespace: str
    selector: str
    port: str = "link"


class RouterSettings(_Settings):
    """The OpenAI-compatible front."""

    listen: str = "127.0.0.1:8000"
    model: ModelSettings
    link: LinkSettings
    machines: tuple[MachineAddress, ...] = ()
    endpoint_slices: SliceSettings | None = Field(None, description="in a cluster, instead of `machines`")
    degraded_mode: DegradedMode = "fail"
    request_timeout_seconds: float = Field(600.0, gt=0)
    wait_for_machines_seconds: float = Field(10.0, ge=0)
    restarts: int = Field(2, ge=0)
    client_disconnect: ClientDisconnect = "stop"
    drain_seconds: float = Field(30.0, gt=0, description="at most, for what runs when told to stop")
    max_body_bytes: int = Field(8 * 2**20, gt=0)
    stream_credit_tokens: int = Field(256, gt=0)

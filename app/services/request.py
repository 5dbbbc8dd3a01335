"""The one request of the product, as every door takes it: JSON, form, command line, saved plan.

Field names and meanings are the HTTP contract's. Unknown keys are refused; numbers are finite and bounded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Degree = Annotated[int, Field(ge=1, le=65536)]
Release = Annotated[str, Field(max_length=40)]
Rate = Annotated[float, Field(ge=1e-3, le=1e9, allow_inf_nan=False)]
Speed = Annotated[float, Field(ge=1e-3, le=1e6, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=1e-3, le=1e5, allow_inf_nan=False)]

_STRICT = ConfigDict(extra="forbid", frozen=True)


class ShapeIn(BaseModel):
    """Dimensions of a decoder."""

    model_config = _STRICT

    num_layers: int = Field(ge=1, le=10_000, description="Repeated blocks.", examples=[32])
    hidden_size: int = Field(ge=1, le=1_000_000, examples=[4096])
    num_heads: int = Field(ge=1, le=100_000, examples=[32])
    num_kv_heads: int | None = Field(None, ge=1, le=100_000, description="Key/value heads; null = num_heads.", examples=[8])
    head_dim: int | None = Field(None, ge=1, le=100_000, description="Null = hidden_size / num_heads.")
    ffn_hidden_size: int = Field(ge=1, le=10_000_000, examples=[14336])
    vocab_size: int = Field(ge=1, le=100_000_000, examples=[128256])
    tied_embeddings: bool = False
    gated_mlp: bool = True
    total_params: float | None = Field(None, ge=1, le=1e14, description="Overrides the count of the tensors.")
    num_experts: int | None = Field(None, ge=1, le=100_000)
    experts_per_token: int | None = Field(None, ge=1, le=100_000)


class ModelIn(BaseModel):
    """The model: exactly one of preset, hf_config, hf_id, shape or params."""

    model_config = _STRICT

    preset: str | None = Field(None, max_length=200, examples=["llama-3.1-8b"])
    hf_config: Any = Field(None, description="The JSON of a config.json.")
    hf_id: str | None = Field(None, max_length=200, description="org/name; only where fetching is switched on.")
    revision: str | None = Field(None, max_length=100)
    shape: ShapeIn | None = None
    params: float | None = Field(None, ge=1e5, le=1e14, allow_inf_nan=False, description="Parameter count; the shape is inferred and said.")

    @model_validator(mode="after")
    def _exactly_one(self) -> ModelIn:
        given = [
            n for n in ("preset", "hf_config", "hf_id", "shape", "params") if n in self.model_fields_set and getattr(self, n) is not None
        ]
        if "hf_config" in self.model_fields_set and self.hf_config is None and not given:
            raise ValueError("hf_config is null; paste the JSON object of a config.json")
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            raise ValueError(f"give exactly one of preset, hf_config, hf_id, shape or params; {what}")
        if self.revision and not self.hf_id:
            raise ValueError("revision belongs to hf_id")
        return self


MAX_TOKENS = 2**24
"""Tokens of one sequence."""

Stride = Annotated[int, Field(ge=1, le=4096)]


class TokensFrom(BaseModel):
    """Tokens of a video or image model: latent patches of one clip."""

    model_config = _STRICT

    frames: int = Field(1, ge=1, le=100_000)
    height: int = Field(ge=1, le=100_000)
    width: int = Field(ge=1, le=100_000)
    vae_stride: tuple[Stride, Stride, Stride] = Field((4, 8, 8), description="Compression of the autoencoder: time, height, width.")
    patch: tuple[Stride, Stride, Stride] = Field((1, 2, 2), description="Patch of the transformer: time, height, width.")

    @model_validator(mode="after")
    def _as_long_as_a_sequence(self) -> TokensFrom:
        if (tokens := tokens_of(self)) > MAX_TOKENS:
            clip = f"{self.frames} frames of {self.width} x {self.height}"
            raise ValueError(f"{clip} are {tokens:,} tokens; sequences of at most {MAX_TOKENS:,} are planned")
        return self


class AdapterIn(BaseModel):
    """LoRA or QLoRA."""

    model_config = _STRICT

    kind: Literal["lora", "qlora"]
    rank: int = Field(16, ge=1, le=65536)
    targets: Literal["all-linear", "attention"] | list[Annotated[str, Field(max_length=100)]] = Field("all-linear", max_length=100)
    base_bits: Literal[4, 8] = 4
    dropout: float | None = Field(None, ge=0, lt=1, allow_inf_nan=False, description="Null = 0.05, as most recipes set it.")
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    modules_to_save: list[Annotated[str, Field(max_length=100)]] = Field(default_factory=list, max_length=100)


class TrainingIn(BaseModel):
    """The training recipe."""

    model_config = _STRICT

    seq_len: int | None = Field(
        None, ge=1, le=MAX_TOKENS, description="Tokens per sequence, before any sequence-parallel split.", examples=[8192]
    )
    tokens_from: TokensFrom | None = Field(None, description="Instead of seq_len, for video and image models.")
    micro_batch: int | None = Field(
        None, ge=1, le=1_000_000, description="Sequences per data-parallel rank per forward; null = the planner chooses."
    )
    grad_accum: int | None = Field(None, ge=1, le=1_000_000)
    global_batch: int | None = Field(None, ge=1, le=10_000_000, description="Sequences per optimizer step.", examples=[256])
    precision: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    master_weights: bool = Field(True, description="Keep a fp32 master copy; false = pure low precision.")
    optimizer: Literal["adamw", "adamw_8bit", "paged_adamw_8bit", "adafactor", "lion", "muon", "sgd_momentum", "sgd"] = "adamw"
    optimizer_in_backward: bool = False
    optimizer_implementation: Literal["foreach", "fused", "loop", "deepspeed_fused", "cpu"] | None = None
    optimizer_state_dtype: Literal["fp32", "bf16", "int8"] | None = None
    grad_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    adapter: AdapterIn | None = None
    trainable_params: float | None = Field(None, ge=1, le=1e14, allow_inf_nan=False)
    activation_checkpointing: Literal["none", "selective", "full"] | None = None
    activation_offload: bool | None = None
    attention: Literal["flash", "sdpa", "eager"] = "flash"
    fused_loss: bool = False
    tiled_mlp: bool = False
    compile: bool = False
    ema: bool = False

    @model_validator(mode="after")
    def _length(self) -> TrainingIn:
        if (self.seq_len is None) == (self.tokens_from is None):
            raise ValueError("give either seq_len or tokens_from, e.g. seq_len 8192")
        return self


class CustomGpu(BaseModel):
    """A GPU that is not in the catalogue."""

    model_config = _STRICT

    name: str = Field("custom GPU", max_length=100)
    memory_gib: Amount = Field(description="What the driver reports, not the label.")
    bf16_tflops: Speed = Field(description="Dense peak.")
    hbm_gb_per_s: Speed
    link_gb_per_s: Amount = Field(31.5, description="To its neighbours, one direction.")
    pcie_gb_per_s: Amount = Field(25.0, description="To the host, one direction.")


class PoolIn(BaseModel):
    """Equal nodes, by GPU or by instance."""

    model_config = _STRICT

    gpu: Annotated[str, Field(max_length=200)] | CustomGpu | None = Field(None, examples=["h100-sxm-80gb"])
    instance: str | None = Field(None, max_length=200, examples=["p5.48xlarge"])
    gpus_per_node: int | None = Field(None, ge=1, le=1024, examples=[8])
    nodes: int = Field(1, ge=1, le=100_000)
    host_memory_gib: Rate | None = None
    nvme_gb: Rate | None = None
    nvme_read_gb_per_s: Rate | None = None
    nvme_write_gb_per_s: Rate | None = None
    intra_node: str | None = Field(None, max_length=50, description="nvlink2 … nvlink5, pcie3 … pcie6, xgmi.", examples=["nvlink4"])
    inter_node_gbit_per_s: Rate | None = Field(None, description="All NICs of one node together.", examples=[3200])
    gpu_memory_gib: Rate | None = Field(None, description="Overrides the memory of one GPU.")

    @model_validator(mode="after")
    def _one_way(self) -> PoolIn:
        if (self.gpu is None) == (self.instance is None):
            raise ValueError("give either gpu or instance, e.g. gpu h100-sxm-80gb")
        return self


class ClusterIn(BaseModel):
    """The GPUs there are; pools may be unequal."""

    model_config = _STRICT

    pools: list[PoolIn] = Field(min_length=1, max_length=8)


class ConstraintsIn(BaseModel):
    """Null leaves a choice to the planner; a value pins it."""

    model_config = _STRICT

    framework: Literal["deepspeed", "fsdp2", "ddp"] | None = None
    strategy: Literal["ddp", "zero1", "zero2", "zero3", "fsdp_full", "fsdp_grad_op", "hsdp"] | None = None
    shard_group_size: Degree | None = None
    tensor_parallel: Degree | None = None
    pipeline_parallel: Degree | None = None
    sequence_parallel: Degree | None = None
    expert_parallel: Degree | None = None
    offload_optimizer: Literal["none", "cpu", "nvme"] | None = None
    offload_parameters: Literal["none", "cpu", "nvme"] | None = None


Role = Annotated[str, Field(min_length=1, max_length=30, pattern=r"^[A-Za-z][A-Za-z0-9 _-]*$")]
_SCORERS = ("critic", "reward")


class CompanionIn(BaseModel):
    """Another model on the same GPUs, frozen or trained."""

    model_config = _STRICT

    role: Role = Field(description="reference, critic, reward, teacher, rollout, or a short name of your own.", examples=["reference"])
    model: ModelIn
    trains: bool = Field(False, description="Whether it has gradients and optimizer states of its own, under the same recipe and strategy.")
    precision: Literal["bf16", "fp16", "fp32"] | None = Field(None, description="Null = as in training.")
    sharding: Literal["same", "replicated"] | None = Field(
        None,
        description="same: a frozen model is divided where the plan divides parameters. Null = same, an engine with a cache replicated.",
    )
    offload_parameters: Literal["none", "cpu"] = Field("none", description="cpu: a frozen model's weights wait in host memory.")
    micro_batch: int | None = Field(None, ge=1, le=1_000_000, description="Of its forward; null = the plan's.")
    seq_len: int | None = Field(None, ge=1, le=MAX_TOKENS, description="Of its forward; null = the plan's.")
    kv_cache_tokens: int | None = Field(
        None, ge=1, le=2**32, description="An inference engine: tokens of keys and values it keeps room for on each GPU."
    )
    head: Literal["lm", "value"] | None = Field(
        None, description="value: one number a token instead of logits. Null = value for critic and reward, else lm."
    )

    @model_validator(mode="after")
    def _frozen_or_trained(self) -> CompanionIn:
        given = {"sharding replicated": self.sharding == "replicated", "offload_parameters cpu": self.offload_parameters == "cpu",
                 "kv_cache_tokens": self.kv_cache_tokens is not None}  # fmt: skip
        wrong = next((name for name, is_given in given.items() if is_given), None)
        if self.trains and wrong:
            raise ValueError(f"{wrong} is for frozen models; one that trains is sharded and offloaded as the plan is. Set trains false")
        if self.offload_parameters == "cpu" and self.kv_cache_tokens is not None:
            raise ValueError("kv_cache_tokens and offload_parameters cpu are both given; an engine keeps its weights on the GPU")
        return self

    @property
    def scores(self) -> bool:
        """Whether it has a value head."""
        return self.head == "value" or (self.head is None and self.role in _SCORERS)


class PlanRequest(BaseModel):
    """One question: model, training, cluster, what is pinned, and other models on the same GPUs."""

    model_config = _STRICT

    model: ModelIn
    training: TrainingIn
    cluster: ClusterIn
    constraints: ConstraintsIn = Field(default_factory=ConstraintsIn)
    companions: list[CompanionIn] = Field(default_factory=list, max_length=8, description="Other models on the same GPUs.")
    objective: Literal["throughput", "simplest", "fewest_gpus", "longest_sequence", "largest_micro_batch"] = "throughput"
    headroom_frac: float = Field(0.05, ge=0, lt=0.9, allow_inf_nan=False, description="Memory of each device left free.")
    deepspeed_version: Release | None = Field(
        None, description="Release the files are for; null = the newest they were checked with.", examples=["0.19.8"]
    )
    torch_version: Release | None = Field(None, description="The same of PyTorch.", examples=["2.13.0"])

    @field_validator("companions")
    @classmethod
    def _each_role_once(cls, companions: list[CompanionIn]) -> list[CompanionIn]:
        roles = [companion.role for companion in companions]
        again = next((role for role in roles if roles.count(role) > 1), None)
        if again:
            raise ValueError(f"role {again} is given {roles.count(again)} times; call them {again} 1 and {again} 2")
        return companions


def tokens_of(source: TokensFrom) -> int:
    """Latent tokens of one clip: frames and pixels over the autoencoder's strides and the patch.

    Causal video autoencoders keep the first frame on its own, hence (frames − 1) / stride + 1.

    Example:
        >>> tokens_of(TokensFrom(frames=81, height=720, width=1280))
        75600
    """
    time = (source.frames - 1) // source.vae_stride[0] + 1
    grid = (time, source.height // source.vae_stride[1], source.width // source.vae_stride[2])
    tokens = 1
    for size, patch in zip(grid, source.patch, strict=True):
        tokens *= max(1, size // patch)
    return tokens

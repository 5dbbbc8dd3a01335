"""The tensors of the two state-space mixers, shared by pure and hybrid models."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.model.architecture import Role, Ssm, Weight
from app.domain.model.weights import conv, linear, norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba1:
    """Selective scan: every channel has its own decay, the time step is low-rank.

    Equation: 2·h·u + u·w + u + u·(r + 2s) + r·u + u + u·s + u + u·h with inner width u, state s, rank r, kernel w.
    """

    hidden_size: int
    inner_size: int
    state_size: int
    rank: int
    conv_kernel: int = 4
    bias: bool = False
    conv_bias: bool = True

    def weights(self) -> tuple[Weight, ...]:
        """Every tensor of the mixer."""
        inner, state = self.inner_size, self.state_size
        return (
            Weight("A_log", (inner, state), Role.OTHER),
            Weight("D", (inner,), Role.OTHER),
            *conv("conv1d", (inner, 1, self.conv_kernel), bias=self.conv_bias),
            *linear("in_proj", 2 * inner, self.hidden_size, bias=self.bias),
            *linear("x_proj", self.rank + 2 * state, inner),
            *linear("dt_proj", inner, self.rank, bias=True),
            *linear("out_proj", self.hidden_size, inner, bias=self.bias),
        )

    def ssm(self) -> Ssm:
        """The widths that activations need."""
        return Ssm(inner_size=self.inner_size, state_size=self.state_size, conv_kernel=self.conv_kernel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2:
    """State-space duality: heads with a scalar decay, states shared by groups.

    Equation: h·(2u + 2gs + n) + (u + 2gs)·(w + 1) + 3n + u + u·h
    with inner width u, groups g, state s, heads n, kernel w.
    """

    hidden_size: int
    inner_size: int
    num_heads: int
    groups: int
    state_size: int
    conv_kernel: int = 4
    bias: bool = False
    conv_bias: bool = True
    gated_norm: bool = True
    out_bias: bool | None = None

    def weights(self) -> tuple[Weight, ...]:
        """Every tensor of the mixer."""
        inner, heads = self.inner_size, self.num_heads
        channels = inner + 2 * self.groups * self.state_size
        out_bias = self.bias if self.out_bias is None else self.out_bias
        return (
            Weight("dt_bias", (heads,), Role.OTHER),
            Weight("A_log", (heads,), Role.OTHER),
            Weight("D", (heads,), Role.OTHER),
            *conv("conv1d", (channels, 1, self.conv_kernel), bias=self.conv_bias),
            *linear("in_proj", inner + channels + heads, self.hidden_size, bias=self.bias),
            *(norm("gated_norm", inner) if self.gated_norm else ()),
            *linear("out_proj", self.hidden_size, inner, bias=out_bias),
        )

    def ssm(self) -> Ssm:
        """The widths that activations need."""
        return Ssm(inner_size=self.inner_size, state_size=self.state_size, conv_kernel=self.conv_kernel)

"""Mesh arithmetic: world_size = pipeline · dp_replicate · dp_shard · sequence · tensor, expert inside the data ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from app.domain.errors import InvalidRequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Degrees of the mesh axes that are not data-parallel."""

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    sequence_parallel: int = 1
    expert_parallel: int = 1

    @property
    def model_ranks(self) -> int:
        """Ranks that hold different parts of one model copy: tensor · pipeline."""
        return self.tensor_parallel * self.pipeline_parallel

    def data_ranks(self, world_size: int) -> int:
        """Ranks that see different sequences.

        Raises:
            InvalidRequestError: the product of the degrees does not divide world_size.

        Example:
            >>> Degrees(tensor_parallel=4, pipeline_parallel=2).data_ranks(64)
            8
        """
        product = self.model_ranks * self.sequence_parallel
        if world_size % product:
            named = next(
                (n for n in ("tensor_parallel", "pipeline_parallel", "sequence_parallel") if getattr(self, n) > 1), "tensor_parallel"
            )
            raise InvalidRequestError.at(
                "constraints",
                named,
                msg=f"tensor_parallel {self.tensor_parallel} × pipeline_parallel {self.pipeline_parallel} × "
                f"sequence_parallel {self.sequence_parallel} = {product} does not divide the {world_size} GPUs",
                hint=f"choose degrees whose product is one of {', '.join(map(str, divisors(world_size)[:12]))}",
            )
        return world_size // product

    def zero_ranks(self, world_size: int) -> int:
        """Ranks that states are sharded over: data times sequence ranks, since a sequence group holds equal weights."""
        return self.data_ranks(world_size) * self.sequence_parallel


def divisors(number: int) -> list[int]:
    """All divisors, ascending.

    Example:
        >>> divisors(12)
        [1, 2, 3, 4, 6, 12]
    """
    return list(_divisors(number))


@lru_cache(maxsize=1024)
def _divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))

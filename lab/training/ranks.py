"""One process, or several that train one model (`python -m torch.distributed.run`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Ranks:
    rank: int = 0
    count: int = 1

    @staticmethod
    def join() -> Ranks:
        """Join the group given by torch.distributed.run, with one thread per rank if there are
        several.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count > 1:
            torch.set_num_threads(1)
            dist.init_process_group("gloo")
        return Ranks(int(os.environ.get("RANK", "0")), count)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def leave(self) -> None:
        """Leave together: gloo can abort a rank that ends while another still writes the state."""
        if self.count > 1:
            dist.barrier()
            dist.destroy_process_group()

    def list_indices(self, total: int) -> list[int]:
        """Return the indices out of `total` that this rank works on."""
        return list(range(self.rank, total, self.count))

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Add up tensors over all ranks, in place."""
        if self.count == 1:
            return
        vector = torch.cat([tensor.reshape(-1) for tensor in tensors])
        dist.all_reduce(vector)
        scatter(vector, tensors)

    def share_(self, tensors: Sequence[Tensor]) -> None:
        """Give all ranks each tensor from its owner (`list_indices`), in place."""
        if self.count == 1:
            return
        for owner in range(self.count):
            members = [tensors[i] for i in range(owner, len(tensors), self.count)]
            vector = torch.cat([tensor.reshape(-1) for tensor in members])
            dist.broadcast(vector, owner)
            if owner != self.rank:
                scatter(vector, members)


def scatter(vector: Tensor, tensors: Sequence[Tensor]) -> None:
    start = 0
    for tensor in tensors:
        tensor.copy_(vector[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()

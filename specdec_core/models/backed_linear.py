"""Puts our linear backends under transformers' modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from specdec_core.models.linear import Linear, LinearBackends


class BackedLinear(nn.Module):
    """A ``Linear`` in the place of an ``nn.Linear``; its weight is no parameter of the model any more."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self._linear = linear

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = self._linear(hidden.reshape(-1, hidden.shape[-1]))
        return rows.view(*hidden.shape[:-1], rows.shape[-1])


@torch.no_grad()
def replace_linears(model: Any, backends: LinearBackends) -> None:
    """Give every ``nn.Linear`` (and GPT-2's transposed ``Conv1D``) of ``model`` its backend; embeddings stay as they are."""
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            backend = backends.head if child is head else backends.layers
            if type(child) is nn.Linear:
                bias = None if child.bias is None else child.bias.detach()
                linear = backend.build(child.weight.detach(), bias)
            elif type(child) is Conv1D:
                linear = backend.build(child.weight.detach().t(), child.bias.detach())
            else:
                continue
            parent.register_module(name, BackedLinear(linear))

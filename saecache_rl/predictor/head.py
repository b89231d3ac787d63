"""A trained network on torch, on whatever device the vectors are on; what a live engine's worker runs."""

from __future__ import annotations

from typing import Any

import torch

from saecache_rl.predictor.network import Network


class Head:
    """The layers of a `Network` on one device, in float32."""

    def __init__(self, network: Network, device: Any) -> None:
        """Copy the layers there."""
        self.layers = [
            (torch.from_numpy(w.T.copy()).to(device), torch.from_numpy(b.copy()).to(device))
            for w, b in zip(network.weights, network.biases, strict=True)
        ]

    def __call__(self, vectors: Any) -> Any:
        """Return (n,) probabilities of (n, h) vectors, on their device."""
        with torch.inference_mode():
            x = vectors.to(torch.float32)
            for n, (weight, bias) in enumerate(self.layers):
                x = torch.addmm(bias, x, weight)
                if n < len(self.layers) - 1:
                    x = x.relu_()
            return torch.sigmoid(x[:, 1] - x[:, 0])

"""Use a loss and the evaluator in your loop, without a trainer, recipe or registry.

The data are points of 300 classes around 300 centres in 8 dimensions, mapped to 64 dimensions by a
random map, with 64 dimensions of noise added. A small network learns to undo this on half of the
classes, and is measured on the other half.
"""

from __future__ import annotations

import torch

import dml_eval_rs
from dml_losses import CrossBatchMemory, InstanceCrossEntropy

torch.manual_seed(0)
CLASSES, A_CLASS = 150, 8

centres = torch.randn(2 * CLASSES, 8)
seen_through = torch.randn(8, 64)
labels = torch.arange(2 * CLASSES).repeat_interleave(A_CLASS)
points = torch.tanh((centres[labels] + 0.3 * torch.randn(len(labels), 8)) @ seen_through)
points = torch.cat(
    (points, 3 * torch.randn(len(labels), 64)), dim=1
)  # half of the dimensions are noise
train, test = labels < CLASSES, labels >= CLASSES


def recall_at_1(network: torch.nn.Module) -> float:
    with torch.no_grad():
        embeddings = network(points[test]).numpy()
    return dml_eval_rs.evaluate(embeddings, labels[test].numpy(), metrics="recall@1")["recall@1"]


network = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
loss = CrossBatchMemory(InstanceCrossEntropy(scale=16.0), capacity=512, warmup_steps=50)
optimizer = torch.optim.AdamW(
    [*network.parameters(), *loss.parameters()], lr=3e-3, weight_decay=1e-2
)

print(f"untrained: Recall@1 {recall_at_1(network):.3f} on unseen classes")
for _ in range(200):
    classes = torch.randperm(CLASSES)[:32]
    rows = (classes[:, None] * A_CLASS + torch.randint(A_CLASS, (32, 4))).flatten()
    value = loss(network(points[rows]), labels[rows])
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
print(f"trained:   Recall@1 {recall_at_1(network):.3f} on unseen classes")

"""The moments of a training step at which memory can peak. The peak is the largest of them, not their sum."""

from __future__ import annotations

INITIALISATION = "initialisation"
FORWARD = "forward"
LOSS = "loss"
BACKWARD = "backward"
BACKWARD_SECOND = "backward_second"
BACKWARD_NEXT = "backward_next"
BACKWARD_FIRST = "backward_first"
REDUCTION = "reduction"
STEP = "step"

MOMENTS = (INITIALISATION, FORWARD, LOSS, BACKWARD, BACKWARD_SECOND, BACKWARD_NEXT, BACKWARD_FIRST, REDUCTION, STEP)

MOMENT_LABELS = {
    INITIALISATION: "engine initialisation",
    FORWARD: "end of forward",
    LOSS: "loss backward",
    BACKWARD: "backward of the last block",
    BACKWARD_SECOND: "backward of the last block but one",
    BACKWARD_NEXT: "backward of the second block",
    BACKWARD_FIRST: "backward of the first block",
    REDUCTION: "end of backward",
    STEP: "optimizer step",
}

ALWAYS = dict.fromkeys(MOMENTS, 1.0)
TRAINING = dict.fromkeys(MOMENTS[1:], 1.0)
IN_BLOCKS = dict.fromkeys((BACKWARD, BACKWARD_SECOND, BACKWARD_NEXT, BACKWARD_FIRST), 1.0)
BACKWARD_ON = IN_BLOCKS | {REDUCTION: 1.0}

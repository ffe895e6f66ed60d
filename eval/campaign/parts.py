"""What a campaign measures, in order of value."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Part:
    """One run of a program.

    Attributes:
      name: names the part and its folder.
      why: what it tells, in a few words.
      call: the program, as `dart-jax` calls it, and its options without those of the reports.
      least: seconds that it needs to tell anything; with less time left it is not started.
      reports: which of json, markdown and plot the program writes.
    """

    name: str
    why: str
    call: str
    least: int = 60
    reports: tuple[str, ...] = ("json", "markdown", "plot")

    @property
    def command(self) -> str:
        """What to type to repeat it, without the reports."""
        return f"dart-jax {self.call}"


_DEVICE = "campaign --device"
# The acceptance length that the paper reports for Qwen3-8B's size.
_8B = "speedup --shape qwen3-8b --acceptance 3.6 --tree-nodes 60 --prompts 1"


def parts(demo: bool = False) -> tuple[Part, ...]:
    """The parts for an accelerator; `demo` adds the training of the demo model, which takes all
    the time that is left."""
    batches = (
        Part(
            f"batch-{size}",
            f"{size} sequences together",
            "speedup --shape qwen3-8b --acceptance 2.5 --repeats 1 "
            f"--batch-size {size} --prompts {size // 4} --tree-nodes {max(200 // size - 1, 3)}",
            75,
        )
        for size in (4, 16, 64)
    )
    training = Part("demo", "the demo model, trained here", "train-demo", 600, ())
    return (
        Part("device", "what it is, and whether it computes right", _DEVICE, 40, ("json",)),
        Part("speedup-8b", "DART against plain decoding in Qwen3-8B's shape", _8B, 90),
        Part(
            "latency-8b",
            "each stage of a step next to the hardware's limit",
            "latency --shape qwen3-8b --context 2048 --tree-nodes 8 60 --repeats 3",
            90,
            ("json",),
        ),
        Part(
            "lossless",
            "drafting changes no token",
            "lossless --model demo --prompts 2 --max-new-tokens 64 --temperature 0 1 "
            "--batch-size 4 --tree-nodes 60 --loop fused --samples 0",
            reports=("json",),
        ),
        Part(
            "speedup-demo",
            "every method whose parts the demo model has",
            "speedup --model demo --method all --prompts 2 --max-new-tokens 96",
            90,
        ),
        Part(
            "eagle3-8b",
            "EAGLE-3 at the same acceptance",
            f"{_8B} --method eagle3 --repeats 1",
            75,
        ),
        Part("dense-8b", "the same speed-up without the kernels", f"{_8B} --attention dense", 75),
        Part(
            "search",
            "the ways of searching trees beside each other",
            "search --model demo --prompts 1",
            60,
            ("json", "markdown"),
        ),
        Part("native-8b", "the same speed-up, searched on the host", f"{_8B} --search native", 75),
        Part("callback-8b", "the same, searched through Python", f"{_8B} --search callback", 75),
        *batches,
        Part(
            "serving",
            "what clients of a server get, drafted and plain",
            "serving --model demo --clients 1 16 64 --requests 64 --rounds 2 "
            "--serve-options=--slots=64",
            240,
            ("json",),
        ),
        Part("speedup-1.7b", "a smaller target", _8B.replace("8b", "1.7b")),
        Part("speedup-4b", "a target in between", _8B.replace("8b", "4b")),
        Part(
            "lossless-dense",
            "whether the text without the kernels is also the same",
            "lossless --model demo --prompts 2 --max-new-tokens 64 --tree-nodes 8 --samples 0 "
            "--attention dense",
            reports=("json",),
        ),
        Part(
            "training",
            "time and memory of a training step",
            "measure-training --context 1024 --repeats 3 --dtype bfloat16",
            reports=("json", "plot"),
        ),
        *((training,) if demo else ()),
    )


def tiny_parts() -> tuple[Part, ...]:
    """The same programs at sizes for any machine, to try a campaign."""
    return (
        Part("device", "what it is, and whether it computes right", _DEVICE, 5, ("json",)),
        Part(
            "lossless",
            "drafting changes no token",
            "lossless --model demo --prompts 1 --max-new-tokens 16 --temperature 0 --batch-size 1 "
            "--tree-nodes 4 --samples 0",
            5,
            ("json",),
        ),
        Part(
            "speedup-demo",
            "DART on the demo model",
            "speedup --model demo --tree-nodes 4 --prompts 1 --max-new-tokens 16 --repeats 1",
            5,
        ),
        Part(
            "latency",
            "each stage of a step next to the hardware's limit",
            "latency --shape tiny --context 128 --tree-nodes 8 --repeats 1",
            5,
            ("json",),
        ),
        Part(
            "serving",
            "what clients of a server get, drafted and plain",
            "serving --model demo --clients 1 2 --requests 2 --rounds 1 --max-new-tokens 8 "
            "--serve-options=--slots=2",
            5,
            ("json",),
        ),
        Part(
            "training",
            "time and memory of a training step",
            "measure-training --context 64 --positions 4 --hidden-size 64 "
            "--intermediate-size 96 --vocab-size 256 --repeats 1",
            5,
            ("json", "plot"),
        ),
    )

"""`primepar train`: train a GPT on a mesh of processes."""

from __future__ import annotations

from typing import Annotated

import typer

from primepar.distributed.training.settings import DeviceChoice, Dtype, Settings


def train(
    ranks: Annotated[
        int | None, typer.Option(help="Start this many processes here, under mpirun.")
    ] = None,
    sequence: Annotated[
        str | None,
        typer.Option(
            help="Partition sequence of every linear operator, like P2x2 or K,P2x2.",
            show_default="P{s}x{s} on s * s processes",
        ),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Plan with the model, a sequence for every operator of it, and maybe the batch.",
            show_default="one sequence for all",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Text to train on, read as bytes; its last tenth is held out.",
            show_default="the standard library's sources",
        ),
    ] = None,
    dtype: Annotated[Dtype, typer.Option(help="Type of weights and activations.")] = "float32",
    device: Annotated[
        DeviceChoice, typer.Option(help="auto is a GPU for each process where there is CUDA.")
    ] = "auto",
    batch: Annotated[
        int | None, typer.Option(help="Sequences in a batch.", show_default="the plan's, or 8")
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of AdamW after the warm-up.")] = 1e-3,
    warmup: Annotated[int, typer.Option(help="Steps of the warm-up.")] = 20,
    clip: Annotated[
        float | None,
        typer.Option(
            metavar="NORM",
            help="Scale gradients of a larger norm down to this one.",
            show_default="any norm",
        ),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Transformer blocks.", show_default="the plan's, or 4")
    ] = None,
    hidden: Annotated[
        int | None, typer.Option(help="Width of the model.", show_default="the plan's, or 192")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="Attention heads.", show_default="the plan's, or 4")
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Bytes in a sequence.", show_default="the plan's, or 128")
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            help="Size of the vocabulary; above 256 the rest is padding.",
            show_default="the plan's, or 256",
        ),
    ] = None,
    evaluate_every: Annotated[
        int, typer.Option(help="Steps between evaluations; 0: only at the end.")
    ] = 50,
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the log here, as JSON lines.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write checkpoints into this folder.")
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(help="Steps between checkpoints; 0: only at the end.")
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint, on any mesh.")
    ] = False,
    trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the timeline of one step: .svg, or .json for Perfetto."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Begin with these weights, in safetensors."),
    ] = None,
    save_weights: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the weights in the end, in safetensors."),
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not prove the program before the first step.")
    ] = False,
    conform: Annotated[
        bool,
        typer.Option(
            "--conform", help="Compare what every rank does with the program, at every step."
        ),
    ] = False,
) -> None:
    """Train a byte-level GPT, or the model of a plan, partitioned over the processes.

    The program of the step is proved first, once for each content.

    Run it alone, with --ranks N, or under mpirun or torchrun. Ctrl-C ends it after the step.
    """
    from primepar.commands.proof import prove
    from primepar.distributed.training.run import train as run

    settings = Settings(
        sequence=sequence,
        plan=plan,
        steps=steps,
        seed=seed,
        data=data,
        dtype=dtype,
        device=device,
        batch=batch,
        lr=lr,
        warmup=warmup,
        clip=clip,
        layers=layers,
        hidden=hidden,
        heads=heads,
        context=context,
        vocabulary=vocabulary,
        evaluate_every=evaluate_every,
        log=log,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        resume=resume,
        trace=trace,
        weights=weights,
        save_weights=save_weights,
        no_verify=no_verify,
        conform=conform,
    )
    raise typer.Exit(run(settings, ranks, prove))

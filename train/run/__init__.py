"""The training loop: any loss, on any mesh of devices, resumable from checkpoints.

May import `dart_jax`. Start with `trainer.py`; `config.py` holds the options of a run.
"""

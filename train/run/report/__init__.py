"""What a run tells: progress on stderr, metrics in files.

May import the rest of `train.run` but the trainer. Start with `steps.py`.
"""

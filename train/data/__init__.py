"""Training data: examples of chats and texts, encoded, packed into rows, and read in batches.

May import `dart_jax`. Start with `prepare.py`, which goes from files to packed rows on the disk:

    records -> examples -> encoding -> packing -> packed_dataset -> batches
"""

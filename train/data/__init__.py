"""Training data: chats and texts, encoded, packed into rows, and read in batches.

May import `dart_jax`. Start with `prepare.py`, which turns files into packed rows on disk:

    records -> examples -> encoding -> packed_dataset -> batch
"""

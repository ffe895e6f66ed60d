"""`python -m eval.campaign`: measures all that a report on a device, or the documents, show.

Runs the other programs, and imports none of them. Start with `program.py`.
"""

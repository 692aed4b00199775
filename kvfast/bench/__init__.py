"""What kvfast's speed is measured with: subjects, real and simulated transfers, and races between them.

``kvfast bench`` and the gates in the repository's ``bench/`` are both made of these parts, so that they
measure the same work. Nothing here is loaded by kvfast itself.
"""

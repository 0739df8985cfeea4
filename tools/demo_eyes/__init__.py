"""The demo model with eyes: pictures drawn by the thousand, questions about them, and its training.

It knows nothing of the engine, which reads its checkpoint as any other.
"""

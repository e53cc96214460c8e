"""The papers' experiments on simulated machines: `python -m research.paper`."""

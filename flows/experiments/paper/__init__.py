"""The papers' experiments on simulated machines: `python -m flows.experiments.paper`."""

"""The simulated cluster: whole steps on a virtual clock, by the schedulers that run the real
ones."""

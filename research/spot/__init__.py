"""A trainer with preemptible workers, on simulated devices."""

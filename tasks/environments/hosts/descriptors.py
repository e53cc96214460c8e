"""A stream to each of its processes takes a pool a descriptor: as many as it has environments."""

from __future__ import annotations

import resource

SPARE = 256  # for everything else that its process has open


def have_descriptors(num_hosts: int) -> None:
    """Raise this process's soft limit as far as so many processes need. ValueError, with the cure,
    where its hard limit is below that."""
    wanted = num_hosts + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ValueError(
            f"a process that keeps num_hosts={num_hosts} environments must be allowed to open"
            f" {wanted} files, its limit is {hard}; lower episodes.hosts.num_hosts, or raise the"
            " hard limit (ulimit -Hn, LimitNOFILE of systemd)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

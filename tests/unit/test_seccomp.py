"""The filter of system calls, interpreted: what passes, by number and by arguments."""

from __future__ import annotations

import errno
import struct

import pytest

from tasks.isolation.seccomp import (
    ALLOW,
    ANY_BIT,
    AT_LEAST,
    EQUAL,
    KILL,
    LOAD,
    REFUSE,
    RETURN,
    X32_BIT,
    allowed_calls,
    assemble,
)

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386 = 0x40000003
EPERM, ENOSYS = REFUSE | errno.EPERM, REFUSE | errno.ENOSYS
JUMPS = {
    EQUAL: lambda value, operand: value == operand,
    AT_LEAST: lambda value, operand: value >= operand,
    ANY_BIT: lambda value, operand: bool(value & operand),
}
UPPER = 1 << 32  # what the kernel does not read of an `int`
FCNTL, IOCTL = {"x86_64": 72, "aarch64": 25}, {"x86_64": 16, "aarch64": 29}
MMAP, MADVISE, PRLIMIT = 9, 28, 302  # on x86_64
BOUNDED = {"x86_64": {16, 72, MMAP, MADVISE, PRLIMIT}, "aarch64": {29, 25, 222, 233, 261}}


def verdict(
    number: int,
    *arguments: int,
    machine: str = "x86_64",
    has_files: bool = True,
    has_network: bool = False,
    foreign: int = 0,
) -> int:
    """What the filter says to a call, its instructions carried out one by one."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, foreign or ARCHITECTURES[machine], 0, *padded)
    filtered = assemble(machine, has_files=has_files, has_network=has_network)
    code = list(struct.iter_unpack("HBBI", filtered))
    value = place = 0
    while True:
        operation, if_true, if_false, operand = code[place]
        place += 1
        if operation == RETURN:
            return int(operand)
        if operation == LOAD:
            (value,) = struct.unpack_from("<I", data, operand)
        else:
            place += if_true if JUMPS[operation](value, operand) else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_what_is_on_the_list_passes_and_nothing_else(machine: str) -> None:
    allowed = set(allowed_calls(machine, has_files=True).values())
    assert len(allowed) > 90
    assert not allowed & BOUNDED[machine]
    for number in set(range(600)) - BOUNDED[machine]:
        refused = ENOSYS if number >= 435 else EPERM
        assert verdict(number, machine=machine) == (ALLOW if number in allowed else refused), number


def test_calls_of_other_architectures_kill() -> None:
    assert verdict(20, foreign=I386) == KILL
    assert verdict(X32_BIT + 57) == KILL
    with pytest.raises(ValueError, match="this machine is riscv64"):
        assemble("riscv64", has_files=True)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_no_descriptor_is_told_to_send_signals_or_to_grow(machine: str) -> None:
    for command in (0, 1, 2, 3, 5, 6, 7, 1030, 1032):
        assert verdict(FCNTL[machine], 3, command, 0x2000, machine=machine) == ALLOW
    for command in (8, 9, 10, 11, 15, 16, 1024, 1025, 1026, 1031, 1033, 1035):
        assert verdict(FCNTL[machine], 3, command, machine=machine) == EPERM
        assert verdict(FCNTL[machine], 3, UPPER + command, machine=machine) == EPERM
    assert verdict(FCNTL[machine], 3, 4, 0x800, machine=machine) == ALLOW
    for flags in (0x2000, 0x2800, UPPER + 0x2000):
        assert verdict(FCNTL[machine], 3, 4, flags, machine=machine) == EPERM
        assert verdict(FCNTL[machine], 3, UPPER + 4, flags, machine=machine) == EPERM
    assert verdict(IOCTL[machine], 3, 0x5401, machine=machine) == ALLOW
    for request in (0x5452, 0x8901, 0x8902, 0x5412, UPPER + 0x5452):
        assert verdict(IOCTL[machine], 3, request, machine=machine) == EPERM


def test_memory_that_others_share_cannot_be_taken_from_them() -> None:
    assert verdict(MMAP, 0, 4096, 3, 0x22) == ALLOW
    assert verdict(MMAP, 0, 4096, 3, 0x40022) == EPERM
    assert verdict(MMAP, 0, 4096, 3, 0x2022) == EPERM
    assert verdict(MADVISE, 0, 4096, 4) == ALLOW
    for advice in (20, 21, 100, 101):
        assert verdict(MADVISE, 0, 4096, advice) == EPERM


def test_limits_are_read_and_not_set() -> None:
    assert verdict(PRLIMIT, 0, 3, 0, 4096) == ALLOW
    assert verdict(PRLIMIT, 0, 3, 4096, 0) == EPERM
    assert verdict(PRLIMIT, 0, 3, UPPER, 0) == EPERM


def test_files_are_changed_only_by_programs_that_have_some() -> None:
    for number in (76, 90, 91, 132, 235, 261, 268, 280):  # truncate, chmod, utime and their like
        assert verdict(number) == ALLOW
        assert verdict(number, has_files=False) == EPERM
    for number in (92, 93, 94, 260, 188, 189, 190, 197):  # chown, setxattr and their like
        assert verdict(number) == EPERM


SOCKET, CONNECT = 41, 42  # on x86_64
UNIX, INTERNET, INTERNET_6, NETLINK, PACKET = 1, 2, 10, 16, 17


def test_sockets_are_refused_without_a_network() -> None:
    assert verdict(SOCKET, INTERNET) == verdict(CONNECT) == EPERM


@pytest.mark.parametrize(
    ("family", "said"),
    [(INTERNET, ALLOW), (INTERNET_6, ALLOW), (UNIX, EPERM), (NETLINK, EPERM), (PACKET, EPERM)],
)
def test_a_network_is_the_internet_and_no_other_socket(family: int, said: int) -> None:
    assert verdict(SOCKET, family, has_network=True) == said
    assert verdict(CONNECT, has_network=True) == ALLOW

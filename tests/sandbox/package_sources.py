"""Virtual environments without a package of the run's, and in them stand-ins for TextArena and GEM:
no more than their interfaces, as the packages have them, and a game or two."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TEXTARENA = {
    "textarena/__init__.py": """
import email.parser  # as the package does; where the library is out of reach later
from textarena.core import *
import textarena.envs
""",
    "textarena/core.py": """
import random

class State:
    def __init__(self, num_players, players=1, seed=None, max_turns=None):
        rule = f"The number of players has to be {players}, received {num_players}"
        assert num_players == players, rule
        if seed is not None:
            random.seed(seed)
        self.max_turns, self.current_player_id = max_turns, 0

    def reset(self, prompt):
        self.turn, self.done, self.rewards, self.messages = 0, False, None, []
        self.game_info = {0: {"role": "Player 0", "invalid_move": False}}
        self.add_observation(prompt)

    def add_observation(self, message, from_id=-1):
        self.messages.append((from_id, message, "a type"))

    def check_turn_limit(self):
        return self.turn >= self.max_turns and self.done == False

    def set_outcome(self, reward, reason):
        self.rewards, self.done = {0: reward}, True
        self.game_info[0]["reason"] = reason

    def step(self):
        self.turn += 1
        return self.done, {}


class Env:
    def get_observation(self):
        messages, self.state.messages = self.state.messages, []
        return self.state.current_player_id, messages

    def close(self):
        return self.state.rewards, self.state.game_info


class Wrapper(Env):
    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self, num_players, seed=None):
        return self.env.reset(num_players=num_players, seed=seed)

    def step(self, action):
        return self.env.step(action=action)

    def get_observation(self):
        return self.env.get_observation()

    def close(self):
        return self.env.close()


class LLMObservationWrapper(Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.full = []

    def get_observation(self):
        player, messages = self.env.get_observation()
        self.full += messages
        return player, "".join(f"\\n[GAME] {text}" for _, text, _ in self.full)


class ActionFormattingWrapper(Wrapper):
    def step(self, action):
        return self.env.step(action if "[" in action else f"[{action}]")
""",
    "textarena/envs/__init__.py": """
from textarena.core import ActionFormattingWrapper, LLMObservationWrapper
from textarena.envs.registration import ENV_REGISTRY, EnvSpec

WRAPPERS = [LLMObservationWrapper, ActionFormattingWrapper]
for name, kwargs in {"Guess-v0": {"players": 1}, "Guess-v0-pair": {"players": 2}}.items():
    ENV_REGISTRY[name] = EnvSpec("textarena.envs.guess:Guess", WRAPPERS, kwargs)
ENV_REGISTRY["Unruly-v0"] = EnvSpec("textarena.envs.unruly:Unruly", None, {})
""",
    "textarena/envs/registration.py": """
import importlib
from dataclasses import dataclass

ENV_REGISTRY = {}


@dataclass
class EnvSpec:
    entry_point: str
    default_wrappers: list
    kwargs: dict


def make(env_id, **kwargs):
    spec = ENV_REGISTRY[env_id]
    module, name = spec.entry_point.split(":")
    env = getattr(importlib.import_module(module), name)(**{**spec.kwargs, **kwargs})
    env.env_id = env_id
    for wrapper in spec.default_wrappers or ():
        env = wrapper(env)
    return env
""",
    "textarena/envs/guess.py": """
import random
import textarena as ta


class Guess(ta.Env):
    def __init__(self, players, largest=9, max_turns=3):
        self.players, self.largest, self.max_turns = players, largest, max_turns
        self.luck = random.random()  # of the construction, as some games have it

    def reset(self, num_players, seed=None):
        self.state = ta.State(num_players, self.players, seed, self.max_turns)
        self.number = random.randint(1, self.largest)
        self.state.reset(f"Guess from 1 to {self.largest}.")

    def step(self, action):
        self.state.add_observation(action, from_id=0)
        if action == f"[{self.number}]":
            self.state.set_outcome(1, "Right.")
        else:
            self.state.add_observation(random.choice(["No.", "Wrong."]))
        if self.state.check_turn_limit():
            self.state.set_outcome(self.luck, "The turn limit has been reached.")
        return self.state.step()
""",
    "textarena/envs/unruly.py": """
import os
import socket
import sys
import threading
import textarena as ta


class Unruly(ta.Env):
    def reset(self, num_players, seed=None):
        self.state = ta.State(num_players, 1, seed, 99)
        self.state.reset("Do what?")

    def step(self, action):
        name, _, argument = action.partition(" ")
        self.state.add_observation(str(getattr(self, name)(argument)))
        return self.state.step()

    def prefix(self, _):
        return sys.prefix

    def imports(self, name):
        try:
            __import__(name)
        except ImportError as error:
            return error

    def fork(self, _):
        return os.fork()

    def thread(self, _):
        threading.Thread(target=print).start()

    def socket(self, _):
        return socket.socket()

    def read(self, path):
        return open(path).read()

    def write(self, path):
        return open(path, "w").write("x")

    def loop(self, _):
        while True:
            pass
""",
}
GEM = {
    "gem/__init__.py": "",
    "gem/envs/__init__.py": """
from gem.envs.registration import ENV_REGISTRY

ENV_REGISTRY["game:Guess-v0"] = "gem.envs.games:Guess"
ENV_REGISTRY["math:One"] = "gem.envs.games:Question"
""",
    "gem/envs/registration.py": """
import importlib

ENV_REGISTRY = {}


def make(env_id, **kwargs):
    module, name = ENV_REGISTRY[env_id].split(":")
    return getattr(importlib.import_module(module), name)(**kwargs)
""",
    "gem/envs/games.py": """
import random


class Guess:
    def __init__(self, max_turns=2):
        self.max_turns = max_turns

    def reset(self, seed=None):
        if seed is not None:
            random.seed(seed)
        self.turn_count, self.number = 0, random.randint(1, 9)
        return "Guess from 1 to 9.\\n", {"suffix": "Enter your guess."}

    def step(self, action):
        self.turn_count += 1
        info = {"suffix": "Enter your next guess.", "tries": self.turn_count}
        if action == f"\\\\boxed{{{self.number}}}":
            return "Right.", 1.0, True, False, info
        if self.turn_count >= self.max_turns:
            return "You have reached the maximum number of turns.", 0.25, True, True, info
        return "Wrong.", 0, False, False, info


class Question:
    def reset(self, seed=None):
        return "1 + 1?", {}

    def step(self, action):
        return "<over>", float(action == "2"), True, True, {"correct": action == "2"}
""",
}


def bare_environment(place: Path) -> Path:
    """The interpreter of a virtual environment in which nothing is installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place / "bin" / "python"


def install(python: Path, distribution: str, version: str, files: Mapping[str, str]) -> None:
    """Put a package where that interpreter finds it."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    info = f"{distribution.replace('-', '_')}-{version}.dist-info/METADATA"
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    for name, text in {**files, info: metadata}.items():
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

"""Loaded by every Python that a sandbox starts: keeps what is deleted, and makes chosen calls fail.

Set by :mod:`audit.marked.sandbox` in the environment: ``MARKED_ATTIC``, a folder for files that are removed
or replaced; ``MARKED_FAULT``, as ``module:name:call:kind``; ``MARKED_SET``, numbers of modules to change, as
``module:name:number;...``. Uses the standard library only.
"""

import errno
import importlib.abc
import importlib.machinery
import itertools
import os
import shutil
import signal
import sys

_ATTIC = os.environ.get("MARKED_ATTIC", "")
_SET = os.environ.get("MARKED_SET", "")
_FAULT = os.environ.get("MARKED_FAULT", "")
_MARK = os.environ.get("MARKED_NUMBER", "0")
_counter = itertools.count()


def _keep(path, dir_fd=None):
    """Give a file that is about to go a second name in the attic."""
    try:
        path = os.fsdecode(path)
        if dir_fd is not None:
            path = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        path = os.path.abspath(path)
        if f"{os.sep}confidential{os.sep}" in path or os.path.islink(path) or not os.path.isfile(path):
            return
        name = f"{os.getpid()}-{next(_counter)}-{os.path.basename(path)}"
        try:
            os.link(path, os.path.join(_ATTIC, name))
        except OSError:
            shutil.copyfile(path, os.path.join(_ATTIC, name))
    except (OSError, ValueError, TypeError):
        pass


def _watch():
    unlink, replace, rename = os.unlink, os.replace, os.rename

    def watched_unlink(path, *, dir_fd=None):
        _keep(path, dir_fd)
        return unlink(path, dir_fd=dir_fd)

    def watched_replace(src, dst, **more):
        _keep(dst, more.get("dst_dir_fd"))
        return replace(src, dst, **more)

    def watched_rename(src, dst, **more):
        _keep(dst, more.get("dst_dir_fd"))
        return rename(src, dst, **more)

    os.unlink = os.remove = watched_unlink
    os.replace, os.rename = watched_replace, watched_rename
    # rmtree asks whether unlink is one that it knows.
    for known in (os.supports_dir_fd, os.supports_follow_symlinks):
        if unlink in known:
            known.add(watched_unlink)


def _fail(kind):
    count = int(_MARK) // 3  # a local variable that holds what may be shown to nobody
    if kind == "abort":
        os.abort()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "full":
        raise OSError(errno.ENOSPC, "No space left on device")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "memory":
        raise MemoryError(f"cannot allocate for {count}")
    try:
        raise KeyError(count)
    except KeyError as error:
        raise ValueError(f"unexpected {count}") from error


def _patch(module, name, call, kind):
    owner = module
    *parts, last = name.split(".")
    for part in parts:
        owner = getattr(owner, part)
    real = getattr(owner, last)
    calls = itertools.count(1)

    def failing(*arguments, **named):
        if next(calls) == call:
            with open(os.path.join(_ATTIC, f"fault-{os.getpid()}"), "w"):
                pass
            _fail(kind)
        return real(*arguments, **named)

    setattr(owner, last, failing)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds one module as everybody else does, and patches it once it is there."""

    def __init__(self, wanted, change):
        self._wanted = wanted
        self._change = change

    def find_spec(self, fullname, path=None, target=None):
        if fullname != self._wanted:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        real = spec.loader.exec_module

        def exec_module(module):
            real(module)
            self._change(module)

        spec.loader.exec_module = exec_module
        return spec


if _ATTIC:
    _watch()
if _FAULT:
    _module, _name, _call, _kind = _FAULT.split(":")
    if _module == "os":
        _patch(os, _name, int(_call), _kind)
    else:
        _struck = (_name, int(_call), _kind)
        sys.meta_path.insert(0, _Finder(_module, lambda module: _patch(module, *_struck)))
for _setting in filter(None, _SET.split(";")):
    _module, _name, _number = _setting.split(":")
    _value = (_name, int(_number))
    sys.meta_path.insert(0, _Finder(_module, lambda module, value=_value: setattr(module, *value)))

"""Ops of the compiled backend, what makes them (NIXL's functions, arrays, capsules), and `try_release`."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint64_t

from ._cpp cimport (
    OpsV1, Telemetry, checked_status, library_of, nixl_agent_type, nixl_release,
    nixl_status, nixl_telemetry, platform_abi_id, release_safe, resolve_calls, simulated_release,
    simulated_status, simulated_telemetry, type_info_name,
)

import numpy as np

from ..agent_ops import PythonOps, mark_released
from ..contract import OPS_CAPSULE
from ..handles import id_only_key, is_typed_array, raw_ids
from ..nixl_target import find_target, warn_if_unlocked
from ..releasing import admitted, refuse_duplicate_ids, release_each
from ..simulated import SimulatedAgent, exception_for

cdef const char* CONDUIT_POINTER = b"raw_pointer_ephemeral"


cdef class CompiledOps:
    """How states are read: ``kind``, and ``reason``, a sentence that says why."""

    def __init__(self, agent, str kind, str reason, python=None):
        self.agent = agent
        self.kind = kind
        self.reason = reason
        self.python = python
        self.library = ""
        self.telemetry_trusted = kind != "nixl"

    def __repr__(self):
        return f"<ops {self.kind}: {self.reason}>"

    def admit(self, handle):
        """Return the id of a handle and the object to keep (None: the id is all there is)."""
        if self.python is not None:
            return self.python.admit(handle)
        return id_only_key(handle)

    def status(self, handle):
        """Ask for the state of one handle: a status code and the exception, if any."""
        cdef uint64_t key
        cdef int32_t code
        if not self.compiled():
            return self.python.status(handle)
        key = self.id_of(handle)
        with nogil:
            code = checked_status(self.calls, key)
        return code, self.error_of(code) if code < 0 else None

    def release(self, handle):
        """Release one handle; return the exception if that was refused."""
        cdef uint64_t key
        cdef int32_t code
        if not self.compiled():
            return self.python.release(handle)
        key = self.id_of(handle)
        with nogil:
            code = self.calls.release(self.calls.context, key)
        if code != 0:
            return self.error_of(code)
        self.mark(handle)
        return None

    @property
    def telemetry_error(self):
        """The last exception of a telemetry call, or None."""
        return None if self.python is None else self.python.telemetry_error

    def take_interrupt(self):
        """Return, once, what a signal or an agent's method raised while handles were released."""
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is None and self.python is not None:
            interrupt = self.python.take_interrupt()
        return interrupt

    cdef bint compiled(self):
        return self.calls.status != NULL

    cpdef object error_of(self, int code):
        """Return what the binding would have raised for a status."""
        return self.insist(exception_for, (code, self._errors))

    cdef int mark(self, handle) except -1:
        """Mark a handle object as released.

        Signals strike at the start of Python functions. None runs between a native release and this, so
        the two are one step; a class that sets attributes in Python is told again.
        """
        if type(handle) is int:
            return 0
        try:
            handle._released = True
        except BaseException as raised:
            if not isinstance(raised, Exception):
                self.interrupt = raised
            self.insist(mark_released, (handle,))  # logs what is wrong with it, or finds that it has no mark
        return 0

    cdef object insist(self, function, tuple arguments):
        """Call a Python function that must be called, and keep what a signal raises at its start."""
        try:
            return function(*arguments)
        except BaseException as interrupt:
            self.interrupt = interrupt
            return function(*arguments)

    cdef int take_signal(self) except -1:
        """Let a signal that has come strike now, and keep what it raises."""
        try:
            PyErr_CheckSignals()
        except BaseException as interrupt:
            self.interrupt = interrupt
        return 0

    cdef uint64_t id_of(self, handle) except? 0:
        return handle if type(handle) is int else handle._handle

    cdef void demote(self, str reason):
        """Go on with Python calls: something native was not as it must be."""
        self.kind = "python"
        self.reason = reason
        self.calls.status = NULL
        self.telemetry_trusted = True

    cdef bint trust_telemetry(self, uint64_t handle) except -1:
        """Compare native telemetry of a DONE handle with the binding's, once."""
        cdef Telemetry seen
        cdef int32_t code
        if self.telemetry_trusted:
            return True
        with nogil:
            code = self.calls.telemetry(self.calls.context, handle, &seen)
        cdef object native = code
        if code == 0:
            native = (seen.xfer_us, seen.post_us, seen.bytes, seen.descriptors)
        binding = self.python.telemetry_or_code(int(handle))
        if native != binding:
            self.demote(f"native telemetry {native} is not what the binding gives, {binding}: another layout")
            return False
        self.telemetry_trusted = True
        return True


def bind(agent):
    """Return ops for an agent: native where that checks out, Python calls otherwise.

    Parameters
    ----------
    agent : object
        A ``nixl_agent``, its inner binding object, a wrapper around one, anything with
        ``check_xfer_state``, ``get_xfer_telemetry`` and ``release_xfer_handle``, a
        `SimulatedAgent`, or a ``kvfast.ops.v1`` capsule.

    Raises
    ------
    TypeError
        If it is none of these.
    ValueError
        If a capsule holds ops of another version or without a function.
    """
    if isinstance(agent, SimulatedAgent):
        return bind_simulated(agent)
    if PyCapsule_IsValid(agent, b"kvfast.ops.v1"):
        return bind_capsule(agent)
    if type(agent).__name__ == "PyCapsule":
        raise TypeError(f"{agent!r} is not a capsule named {OPS_CAPSULE!r}")
    return bind_nixl(agent)


cdef CompiledOps bind_simulated(agent):
    cdef CompiledOps ops = CompiledOps(agent, "simulated", "a SimulatedAgent, read by compiled code")
    cdef int32_t[::1] states_view = agent.states
    cdef int32_t[::1] release_view = agent.release_codes
    cdef int64_t[:, ::1] telemetry_view = agent.telemetry
    cdef int32_t[::1] released_view = agent.released
    # The views hold the exports; the arrays can't move or go while these ops live.
    ops.keep = (states_view, release_view, telemetry_view, released_view)
    ops.arrays.count = len(states_view)
    if ops.arrays.count:
        ops.arrays.states = &states_view[0]
        ops.arrays.release_codes = &release_view[0]
        ops.arrays.telemetry = &telemetry_view[0, 0]
        ops.arrays.released = &released_view[0]
    ops.calls.context = &ops.arrays
    ops.calls.status = simulated_status
    ops.calls.telemetry = simulated_telemetry
    ops.calls.release = simulated_release
    return ops


cdef CompiledOps bind_capsule(capsule):
    cdef const OpsV1* given = <const OpsV1*>PyCapsule_GetPointer(capsule, b"kvfast.ops.v1")
    cdef size_t size = sizeof(OpsV1)
    if given.version != 1 or given.size < size:
        raise ValueError(
            f"ops version {given.version}, size {given.size}: expected version 1, size {size} or more"
        )
    if given.status == NULL or given.telemetry == NULL or given.release == NULL:
        raise ValueError("ops lack a function: status, telemetry and release must all be there")
    cdef CompiledOps ops = CompiledOps(capsule, "capsule", f"a {OPS_CAPSULE} capsule")
    ops.calls = given[0]
    return ops


cdef CompiledOps bind_nixl(agent):
    found = find_target(agent)
    reason = found.reason
    target = found.target
    if target is not None and target.overriding:
        reason = f"{target.overriding} is not NIXL's own method, and native calls would go past it"
    cdef CompiledOps ops = CompiledOps(agent, "python", reason, PythonOps(agent, reason))
    if target is None or target.overriding:
        return ops
    ops._errors = target.module
    warn_if_unlocked(agent)
    problem = open_native(ops, target)
    if problem:
        ops.reason = problem
        return ops
    ops.kind = "nixl"
    ops.reason = f"native calls into {ops.library}"
    ops.telemetry_trusted = False
    ops.calls.context = &ops.nixl
    ops.calls.telemetry = nixl_telemetry
    ops.calls.release = nixl_release
    ops.calls.status = nixl_status
    return ops


cdef str open_native(CompiledOps ops, target):
    """Fill ``ops.nixl``; return what went wrong, or an empty string."""
    try:
        pointer = agent_pointer(target.inner)
    except Exception as error:
        return f"pybind11's conduit failed: {error!r}"
    if pointer is None:
        return f"the binding was built for another C++ ABI than {platform_abi_id().decode()!r}"
    if not PyCapsule_IsValid(pointer, b"9nixlAgent"):
        return f"pybind11's conduit gave {pointer!r}, which is no nixlAgent"
    ops.nixl.agent = PyCapsule_GetPointer(pointer, b"9nixlAgent")
    problem = resolve_calls(target.module_file.encode(), ops.nixl).decode()
    if not problem:
        ops.library = library_of(ops.nixl).decode()
    return problem


cdef object agent_pointer(inner):
    """Ask pybind11's conduit for the C++ object: a capsule, or None if the ABIs differ."""
    type_info = PyCapsule_New(<void*>nixl_agent_type(), type_info_name(), NULL)
    return inner._pybind11_conduit_v1_(<bytes>platform_abi_id(), type_info, <bytes>CONDUIT_POINTER)


def try_release(ops, handles):
    """Release handles that may be released.

    Parameters
    ----------
    ops : Ops
        What `bind` returned.
    handles : sequence of handles, or array of uint64
        Handle objects and raw ids in any mix, or a typed array of raw ids.

    Returns
    -------
    ndarray of bool, shape (len(handles),)
        False where the caller must keep the handle: it is in flight, it is LOST (a table's
        quarantine is the place for it), or NIXL refused.

    Raises
    ------
    TypeError, ValueError
        If something is not a handle; nothing has been released then.
    DuplicateHandleError
        If a handle is named twice; nothing has been released then.
    """
    if not isinstance(ops, CompiledOps):
        raise TypeError(f"ops must come from bind() of the cython backend, not {ops!r}")
    if not (<CompiledOps>ops).compiled():
        return release_each(ops, handles)
    if is_typed_array(handles):
        ids = refuse_duplicate_ids(ops, raw_ids(handles))
        return answered(ops, release_ids(ops, ids))
    found = admitted(ops, handles)
    released = release_ids(ops, np.array([key for key, _ in found], np.uint64))
    for (_, handle), gone in zip(found, released):
        if gone:
            (<CompiledOps>ops).mark(handle)
    return answered(ops, released)


cdef object answered(CompiledOps ops, released):
    """Return `released`, or raise an interrupt that carries it, as `release_each` does."""
    ops.take_signal()
    interrupt = ops.take_interrupt()
    if interrupt is None:
        return released
    interrupt.kvfast_released = released
    raise interrupt


cdef object release_ids(CompiledOps ops, ids):
    cdef Py_buffer given, answers
    cdef int64_t count = len(ids)
    released = np.zeros(count, np.bool_)
    PyObject_GetBuffer(ids, &given, PyBUF_C_CONTIGUOUS)
    try:
        PyObject_GetBuffer(released, &answers, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        try:
            with nogil:
                release_safe(ops.calls, <const uint64_t*>given.buf, count, <char*>answers.buf)
        finally:
            PyBuffer_Release(&answers)
    finally:
        PyBuffer_Release(&given)
    return released

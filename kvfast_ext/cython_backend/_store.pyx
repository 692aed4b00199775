"""Handles in flight in arrays, and the sweep over them."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from ._cpp cimport EndedSlot, Request, Telemetry, kException, kInProgress, kNoTelemetry, kSuccess
from ._native cimport CompiledOps

import numpy as np

from .. import states
from ..agent_ops import mark_released, untraced
from ..contract import Ended, Swept

cdef object PROC = "PROC"
cdef object new_tuple = tuple.__new__  # a named tuple's own __new__ is Python, where a signal can strike


cdef class CompiledStore:
    """The store of the ``cython`` backend. The table that owns it guards it."""

    def __init__(self, CompiledOps ops not None):
        self.ops = ops
        self.index = {}
        self.names = []
        self.objects = []
        self.errors = {}
        self.bind_calls()

    cdef void bind_calls(self):
        if self.ops.compiled():
            self.with_gil = False
            self.calls = self.ops.calls
            return
        self.check = self.ops.python.direct_check()
        self.with_gil = True
        self.calls.context = <void*>self
        self.calls.status = <int32_t (*)(void*, uint64_t) noexcept nogil>python_status
        self.calls.telemetry = <int32_t (*)(void*, uint64_t, Telemetry*) noexcept nogil>python_telemetry
        self.calls.release = <int32_t (*)(void*, uint64_t) noexcept nogil>python_release

    # ---- requests and handles

    def __contains__(self, req_id):
        return req_id in self.index

    def __len__(self):
        return len(self.index)

    def __iter__(self):
        return iter(list(self.index))

    @property
    def in_flight(self):
        """How many handles are in flight."""
        return self.table.handle_count()

    @property
    def nbytes(self):
        """Bytes allocated for the handles in flight, their objects and requests not counted."""
        return self.table.handle_bytes() + self.objects.__sizeof__()

    def open(self, str req_id not None):
        """Make an entry without handles."""
        self.names.append(req_id)
        self.index[req_id] = self.table.open_request()

    def append(self, str req_id not None, list keys not None, list handles not None, int32_t peer):
        """Add handles in flight, newest last; None stands for the key as a raw id."""
        cdef int32_t owner = self.index[req_id]
        for key, handle in zip(keys, handles):
            self.table.add(owner, <uint64_t>key, peer)
            self.objects.append(handle)

    def drop(self, str req_id not None):
        """Drop a request that waits for nothing."""
        self.close(self.index[req_id])

    def let_go(self, item, set done not None):
        """Take a held handle from its request, if it has one; that is `done` if it waits no more.

        All in one step: a signal comes before it or after it.
        """
        req_id, item.req_id = item.req_id, None
        if req_id is None:
            return
        cdef int32_t owner = self.index[req_id]
        cdef Request* request = self.table.request(owner)
        request.held -= 1
        if request.held == 0 and request.in_flight == 0:
            self.close(owner)
            done.add(req_id)

    def find(self, uint64_t key):
        """Tell whether a handle with this id is in flight."""
        return self.table.find(key) >= 0

    def handles(self, str req_id not None):
        """Return a request's handles in flight, oldest first."""
        cdef int32_t slot = self.table.request(<int32_t>self.index[req_id]).newest
        found = []
        while slot >= 0:
            found.append(self.handle_at(slot))
            slot = self.table.older(slot)
        found.reverse()
        return found

    def ids(self):
        """Return the ids of all handles in flight."""
        out = np.empty(self.table.handle_count(), np.uint64)
        cdef uint64_t[::1] view = out
        if len(view):
            memcpy(&view[0], self.table.ids().data(), len(view) * sizeof(uint64_t))
        return out

    def outstanding_of(self, int32_t peer):
        """Return how many handles in flight carry this peer token."""
        return self.table.outstanding_of(peer)

    # ---- one sweep

    def sweep(self, bint full, list out not None):
        """Ask for states; take out what has ended and add it to `out`. Failed handles make requests wait.

        From the first release on no Python function runs in which a signal would end this half way:
        either nothing was changed, or all that has ended is in `out`.
        """
        cdef bint checked, trusted = self.ops.telemetry_trusted
        if self.with_gil != (not self.ops.compiled()):
            self.bind_calls()
        if self.with_gil:
            checked = self.swept.check(self.table, self.calls, full)
            self.raise_interrupt()
            if checked:
                self.swept.finish(self.table, self.calls)
        else:
            with nogil:
                checked = self.swept.check(self.table, self.calls, full)
                if checked and trusted:
                    self.swept.finish(self.table, self.calls)
            if checked and not trusted:
                self.trust_and_finish()
        if not checked:
            raise MemoryError("no memory for the handles that have ended; nothing was changed")
        if not self.swept.ended.empty():
            self.ops.take_signal()  # that of a Ctrl-C meanwhile; a handle's finaliser would swallow it
            out.append(self.collect())

    cdef int trust_and_finish(self) except -1:
        """Finish the first sweep with a DONE handle: native telemetry is compared first."""
        cdef int32_t slot = self.swept.first_done()
        if slot >= 0 and not self.ops.trust_telemetry(self.table.ids()[slot]):
            self.bind_calls()
        self.swept.finish(self.table, self.calls)
        return 0

    cdef int raise_interrupt(self) except -1:
        interrupt, self.interrupt = self.interrupt, None
        if interrupt is not None:
            self.errors.clear()
            raise interrupt
        return 0

    # ---- from C to Python

    cdef object collect(self):
        cdef set drained = set()
        cdef list ended = []
        cdef int64_t row = 0, done = 0
        cdef int64_t i, count = self.swept.ended.size()
        cdef EndedSlot* end
        cdef Py_buffer rows
        self.swept.highest_slot_first()
        samples = np.empty((4, self.swept.sample_count()), np.int64)
        PyObject_GetBuffer(samples, &rows, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        # Nobody looks a handle up before this is over: table.py asks `find` only between sweeps.
        cdef bint many = count * 2 > self.table.handle_count()
        if many:
            self.table.begin_removing_many()
        try:
            for i in range(count):
                end = &self.swept.ended[i]
                if end.code == 0:
                    done += 1
                    if end.sample():
                        end.write(<int64_t*>rows.buf + row, rows.shape[1])
                        row += 1
                self.take_out(end, drained, ended)
        finally:
            PyBuffer_Release(&rows)
            self.errors.clear()
            self.swept.forget()
            if many:
                self.table.end_removing_many()
        return new_tuple(Swept, (drained, ended, samples, done - row))

    cdef int take_out(self, EndedSlot* end, set drained, list ended) except -1:
        """Remove one ended handle; its request is drained, or waits, or is told about it."""
        cdef int32_t owner = self.table.owner(end.slot)
        cdef Request* request = self.table.request(owner)
        handle = self.objects[end.slot]
        if end.code != 0 or end.released != 0:
            ended.append(self.describe(end, owner))
        if end.code != 0:
            request.held += 1
        self.remove(end.slot)
        if request.in_flight == 0 and request.held == 0:
            drained.add(self.names[owner])
            self.close(owner)
        if end.code == 0 and end.released == 0 and handle is not None and not self.with_gil:
            self.ops.mark(handle)
        return 0

    cdef object describe(self, EndedSlot* end, int32_t owner):
        cdef int32_t code = end.released if end.code == 0 else end.code
        error = self.errors.get(end.slot) if self.with_gil else self.ops.error_of(code)
        key = self.table.ids()[end.slot]
        handle = self.handle_at(end.slot)
        return new_tuple(Ended, (self.names[owner], handle, key, self.table.peer(end.slot), end.code, error))

    cdef object handle_at(self, int32_t slot):
        handle = self.objects[slot]
        return self.table.ids()[slot] if handle is None else handle

    cdef int remove(self, int32_t slot) except -1:
        self.table.remove(slot)
        last = self.objects.pop()
        if slot < len(self.objects):
            self.objects[slot] = last
        return 0

    cdef int close(self, int32_t owner) except -1:
        self.table.close_request(owner)
        del self.index[self.names[owner]]
        last = self.names.pop()
        if owner < len(self.names):
            self.names[owner] = last
            self.index[last] = owner
        return 0


# ---- ops that call Python: the sweep runs with the GIL held, and `cursor` names the handle. C can't
# take an exception, so whatever comes out unexpectedly must not look like success.

cdef int32_t python_status(void* context, uint64_t key) noexcept:
    store = <CompiledStore>context
    try:
        return ask(store, store.handle_at(store.swept.cursor))
    except BaseException as interrupt:
        store.interrupt = interrupt
        store.swept.stopped = True
        return kException


cdef int32_t ask(CompiledStore store, handle) except? -1:
    try:
        if store.check is None:
            code, error = store.ops.python.status(handle)
        else:
            value = store.check(handle)
            if value is PROC or value == PROC:
                return kInProgress
            code, error = store.ops.python.judge(value)
    except Exception as raised:
        code, error = states.code_of_exception(raised), untraced(raised)
    if error is not None:
        store.errors[store.swept.cursor] = error
    return code


cdef int32_t python_telemetry(void* context, uint64_t key, Telemetry* out) noexcept:
    store = <CompiledStore>context
    try:
        sample = store.ops.python.telemetry(store.handle_at(store.swept.cursor))
        if sample is None:
            return kNoTelemetry
        out.xfer_us, out.post_us, out.bytes, out.descriptors = sample
    except BaseException as raised:
        # Numbers that no int64 holds are no sample, like any other bad telemetry.
        if not isinstance(raised, Exception):
            store.ops.python.keep_interrupt(raised)
        return kNoTelemetry
    return kSuccess


cdef int32_t python_release(void* context, uint64_t key) noexcept:
    store = <CompiledStore>context
    handle = store.handle_at(store.swept.cursor)
    try:
        error = store.ops.python.release(handle)
        if error is None:
            return kSuccess
        store.errors[store.swept.cursor] = error
        return kException
    except BaseException as interrupt:  # may be freed: never again (agent_ops.py)
        mark_released(handle)
        store.ops.python.keep_interrupt(interrupt)
        return kSuccess

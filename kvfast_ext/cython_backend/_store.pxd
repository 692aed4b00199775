from libc.stdint cimport int32_t, int64_t

from ._cpp cimport EndedSlot, HandleTable, OpsV1, Sweep
from ._native cimport CompiledOps


cdef class CompiledStore:
    cdef CompiledOps ops
    cdef HandleTable table
    cdef Sweep swept
    cdef OpsV1 calls
    cdef bint with_gil
    cdef dict index          # request id -> request index
    cdef list names          # request index -> request id
    cdef list objects        # slot -> handle object, or None where the id is all there is
    cdef dict errors         # slot -> exception of a Python call in this sweep
    cdef object interrupt    # what came out of a check and is no error
    cdef object check        # the agent's check method, where it takes what we keep

    cdef void bind_calls(self)
    cdef int trust_and_finish(self) except -1
    cdef int raise_interrupt(self) except -1
    cdef object collect(self)
    cdef int take_out(self, EndedSlot* end, set drained, list ended) except -1
    cdef object describe(self, EndedSlot* end, int32_t owner)
    cdef object handle_at(self, int32_t slot)
    cdef int remove(self, int32_t slot) except -1
    cdef int close(self, int32_t owner) except -1

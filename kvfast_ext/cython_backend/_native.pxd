from libc.stdint cimport uint64_t

from ._cpp cimport NixlCalls, OpsV1, SimulatedArrays


cdef class CompiledOps:
    cdef readonly str kind
    cdef readonly str reason
    cdef readonly object agent
    cdef readonly object python       # PythonOps: what is done where native calls are not trusted
    cdef readonly str library         # the file of the native functions, "" if there is none
    cdef bint telemetry_trusted
    cdef OpsV1 calls                  # not for the "python" kind: that needs a store's handles
    cdef NixlCalls nixl
    cdef SimulatedArrays arrays
    cdef object keep                  # what `calls` points into
    cdef object _errors               # builds exceptions
    cdef object interrupt             # what a signal raised, until all that was seen is safe

    cdef bint compiled(self)
    cdef bint trust_telemetry(self, uint64_t handle) except -1
    cdef void demote(self, str reason)
    cpdef object error_of(self, int code)
    cdef uint64_t id_of(self, handle) except? 0
    cdef int mark(self, handle) except -1
    cdef object insist(self, function, tuple arguments)
    cdef int take_signal(self) except -1

# What the C++ headers offer. Each function is noexcept there.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.string cimport string
from libcpp.vector cimport vector


cdef extern from "ops_v1.hpp" namespace "kvfast" nogil:
    const int32_t kInProgress
    const int32_t kSuccess
    const int32_t kNoTelemetry
    const int32_t kException

    cdef struct Telemetry:
        int64_t start_us
        int64_t post_us
        int64_t xfer_us
        uint64_t bytes
        uint64_t descriptors

    cdef struct OpsV1:
        uint32_t version
        uint32_t size
        void* context
        int32_t (*status)(void*, uint64_t) noexcept nogil
        int32_t (*telemetry)(void*, uint64_t, Telemetry*) noexcept nogil
        int32_t (*release)(void*, uint64_t) noexcept nogil


cdef extern from "handle_table.hpp" namespace "kvfast" nogil:
    cdef struct Request:
        int32_t newest
        int32_t in_flight
        int32_t held

    cdef cppclass HandleTable:
        int32_t handle_count() noexcept
        int32_t request_count() noexcept
        const vector[uint64_t]& ids() noexcept
        int32_t owner(int32_t slot) noexcept
        int32_t older(int32_t slot) noexcept
        int32_t peer(int32_t slot) noexcept
        Request* request(int32_t index) noexcept
        int32_t find(uint64_t handle) noexcept
        int32_t outstanding_of(int32_t peer) noexcept
        int32_t open_request() except +
        int32_t close_request(int32_t index) noexcept
        void add(int32_t request, uint64_t handle, int32_t peer) except +
        int32_t remove(int32_t slot) noexcept
        void begin_removing_many() noexcept
        void end_removing_many() noexcept
        size_t handle_bytes() noexcept


cdef extern from "sweep.hpp" namespace "kvfast" nogil:
    cdef cppclass EndedSlot:
        int32_t slot
        int32_t code
        int32_t sampled
        int32_t released
        cbool sample() noexcept
        void write(int64_t* column, int64_t stride) noexcept

    cdef cppclass Sweep:
        vector[EndedSlot] ended
        int32_t cursor
        cbool stopped
        cbool check(const HandleTable&, const OpsV1&, cbool full) noexcept
        void finish(const HandleTable&, const OpsV1&) noexcept
        void highest_slot_first() noexcept
        void forget() noexcept
        int32_t first_done() noexcept
        int64_t sample_count() noexcept

    int32_t checked_status(const OpsV1&, uint64_t handle) noexcept
    void release_safe(const OpsV1&, const uint64_t* ids, int64_t count, char* out) noexcept


cdef extern from "simulated.hpp" namespace "kvfast" nogil:
    cdef struct SimulatedArrays:
        int64_t count
        int32_t* states
        int32_t* release_codes
        int64_t* telemetry
        int32_t* released

    int32_t simulated_status(void*, uint64_t) noexcept nogil
    int32_t simulated_telemetry(void*, uint64_t, Telemetry*) noexcept nogil
    int32_t simulated_release(void*, uint64_t) noexcept nogil


cdef extern from "nixl_native.hpp" namespace "kvfast" nogil:
    cdef struct NixlCalls:
        const void* agent

    const void* nixl_agent_type() noexcept
    const char* type_info_name() noexcept
    const char* platform_abi_id() noexcept
    string resolve_calls(const char* module_file, NixlCalls& calls) except +
    string library_of(const NixlCalls& calls) except +
    int32_t nixl_status(void*, uint64_t) noexcept nogil
    int32_t nixl_telemetry(void*, uint64_t, Telemetry*) noexcept nogil
    int32_t nixl_release(void*, uint64_t) noexcept nogil

// The seam between a sweep and whatever moves the bytes: three functions and a context.
// This layout is public (capsule "kvfast.ops.v1"); python_backend/capsule.py has it in ctypes.
#pragma once

#include <cstdint>

namespace kvfast {

// Status codes are nixl_status_t: 1 in progress, 0 done, negative an error.
constexpr std::int32_t kInProgress = 1;
constexpr std::int32_t kSuccess = 0;
constexpr std::int32_t kInvalidParam = -2;
constexpr std::int32_t kNotFound = -4;
constexpr std::int32_t kNoTelemetry = -12;
constexpr std::int32_t kException = -1002;  // states.ERR_EXCEPTION
constexpr std::int32_t kNoState = -1003;    // states.ERR_VALUE

struct Telemetry {
    std::int64_t start_us;  // of a clock of the maker's; not read by kvfast
    std::int64_t post_us;
    std::int64_t xfer_us;
    std::uint64_t bytes;
    std::uint64_t descriptors;
};

struct OpsV1 {
    std::uint32_t version;  // 1
    std::uint32_t size;     // sizeof(OpsV1) of the maker
    void* context;
    // None of them may throw, and each is called without the GIL.
    std::int32_t (*status)(void* context, std::uint64_t handle);
    std::int32_t (*telemetry)(void* context, std::uint64_t handle, Telemetry* out);
    std::int32_t (*release)(void* context, std::uint64_t handle);
};

// A check's answer; a positive number that is no state is an error, not "in progress".
inline std::int32_t checked_status(const OpsV1& ops, std::uint64_t handle) noexcept {
    const std::int32_t code = ops.status(ops.context, handle);
    return code <= kInProgress ? code : kNoState;
}

// Whether telemetry can be told as it is: kvfast's arrays are signed.
inline bool plausible(const Telemetry& seen) noexcept {
    return seen.xfer_us >= 0 && seen.post_us >= 0 && seen.bytes >> 63 == 0 && seen.descriptors >> 63 == 0;
}

}  // namespace kvfast

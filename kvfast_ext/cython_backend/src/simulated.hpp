// Ops over the arrays of a SimulatedAgent (simulated.py): handle ids are indices.
#pragma once

#include <cstdint>

#include "ops_v1.hpp"

namespace kvfast {

struct SimulatedArrays {
    std::int64_t count = 0;
    std::int32_t* states = nullptr;
    std::int32_t* release_codes = nullptr;
    std::int64_t* telemetry = nullptr;  // rows of xfer_us, post_us, bytes, descriptors
    std::int32_t* released = nullptr;

    bool has(std::uint64_t handle) const noexcept { return handle < static_cast<std::uint64_t>(count); }
};

inline std::int32_t simulated_status(void* context, std::uint64_t handle) noexcept {
    const SimulatedArrays& agent = *static_cast<SimulatedArrays*>(context);
    return agent.has(handle) ? agent.states[handle] : kInvalidParam;
}

inline std::int32_t simulated_telemetry(void* context, std::uint64_t handle, Telemetry* out) noexcept {
    const SimulatedArrays& agent = *static_cast<SimulatedArrays*>(context);
    if (!agent.has(handle)) return kInvalidParam;
    const std::int64_t* row = agent.telemetry + 4 * handle;
    *out = Telemetry{0, row[1], row[0], static_cast<std::uint64_t>(row[2]), static_cast<std::uint64_t>(row[3])};
    return kSuccess;
}

inline std::int32_t simulated_release(void* context, std::uint64_t handle) noexcept {
    const SimulatedArrays& agent = *static_cast<SimulatedArrays*>(context);
    if (!agent.has(handle)) return kInvalidParam;
    if (agent.release_codes[handle] == kSuccess) ++agent.released[handle];
    return agent.release_codes[handle];
}

}  // namespace kvfast

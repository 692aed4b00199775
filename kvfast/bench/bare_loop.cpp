// The limit: what the calls into NIXL cost when nothing is done beside them. Compiled by bare_loop.py
// when a benchmark runs. Functions and agent come from the caller, so NIXL's headers are not needed.
#include <chrono>
#include <cstdint>
#include <typeinfo>

// Only its type_info is used: pybind11's conduit compares names.
class nixlAgent {};

namespace {

// The layout is NIXL's nixlXferTelemetry; the loop reads nothing of it, it must only be large enough.
struct Telemetry {
    std::int64_t words[32];
};

using Status = std::int32_t (*)(const void* agent, void* request);
using GetTelemetry = std::int32_t (*)(const void* agent, const void* request, Telemetry* out);

constexpr std::int32_t kSuccess = 0;
constexpr std::int32_t kInProgress = 1;

std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace

extern "C" {

const void* agent_type() { return &typeid(nixlAgent); }
const char* type_info_name() { return typeid(std::type_info).name(); }

// Return the nanoseconds of one pass over handles that must all be in flight, or -1 if one was not.
std::int64_t check_all(Status status, const void* agent, void* const* handles, std::int64_t count) {
    std::int64_t in_flight = 0;
    const std::int64_t start = now_ns();
    for (std::int64_t i = 0; i < count; ++i) in_flight += status(agent, handles[i]) == kInProgress;
    const std::int64_t spent = now_ns() - start;
    return in_flight == count ? spent : -1;
}

// The same over handles that are DONE: state, telemetry, release. -1 if a call did not succeed.
std::int64_t finish_all(Status status, GetTelemetry telemetry, Status release, const void* agent,
                        void* const* handles, std::int64_t count, Telemetry* rows) {
    std::int64_t good = 0;
    const std::int64_t start = now_ns();
    for (std::int64_t i = 0; i < count; ++i) {
        good += status(agent, handles[i]) == kSuccess;
        good += telemetry(agent, handles[i], &rows[i]) == kSuccess;
        good += release(agent, handles[i]) == kSuccess;
    }
    const std::int64_t spent = now_ns() - start;
    return good == 3 * count ? spent : -1;
}

// What simulated ops come to: a call through a pointer, which reads one state.
std::int32_t read_state(const void* states, void* index) {
    return static_cast<const std::int32_t*>(states)[reinterpret_cast<std::uintptr_t>(index)];
}

}  // extern "C"

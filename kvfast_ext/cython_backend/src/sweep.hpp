// The hot loop. Runs without the GIL for native ops; for Python ops the same loop runs with the GIL
// held and the functions call back into Python. It reads the table and writes only its own buffer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "handle_table.hpp"
#include "ops_v1.hpp"

namespace kvfast {

struct EndedSlot {
    std::int32_t slot;
    std::int32_t code;      // what the check said
    std::int32_t sampled;   // what telemetry said; only for DONE
    std::int32_t released;  // what release said; only for DONE
    Telemetry telemetry;

    bool sample() const noexcept { return code == kSuccess && sampled == kSuccess; }

    // Write telemetry into one column of a table of four rows, each `stride` long.
    void write(std::int64_t* column, std::int64_t stride) const noexcept {
        column[0] = telemetry.xfer_us;
        column[stride] = telemetry.post_us;
        column[2 * stride] = static_cast<std::int64_t>(telemetry.bytes);
        column[3 * stride] = static_cast<std::int64_t>(telemetry.descriptors);
    }
};

class Sweep {
  public:
    std::vector<EndedSlot> ended;
    // The slot that is being asked about: Python ops find the handle object by it.
    std::int32_t cursor = HandleTable::kNone;
    // Set by Python ops: an interrupt came out of a check, nothing more may be asked.
    bool stopped = false;

    // Ask for states. Only reads the table, and changes nothing but this buffer.
    bool check(const HandleTable& table, const OpsV1& ops, bool full) noexcept {
        ended.clear();
        stopped = false;
        try {
            return full ? check_all(table, ops) : check_newest(table, ops);
        } catch (...) {  // std::bad_alloc of the buffer
            return false;
        }
    }

    // Telemetry and release of the DONE ones.
    void finish(const HandleTable& table, const OpsV1& ops) noexcept {
        for (EndedSlot& end : ended) {
            if (end.code != kSuccess) continue;
            cursor = end.slot;
            const std::uint64_t id = table.ids()[end.slot];
            end.sampled = ops.telemetry(ops.context, id, &end.telemetry);
            if (end.sampled == kSuccess && !plausible(end.telemetry)) end.sampled = kNoTelemetry;
            end.released = ops.release(ops.context, id);
        }
    }

    // Whoever removes handles in this order never moves one that is still to be removed.
    void highest_slot_first() noexcept {
        const auto higher = [](const EndedSlot& a, const EndedSlot& b) { return a.slot > b.slot; };
        // A full scan has found them in the opposite order.
        std::reverse(ended.begin(), ended.end());
        if (!std::is_sorted(ended.begin(), ended.end(), higher)) std::sort(ended.begin(), ended.end(), higher);
    }

    // Empty the buffer, and give its memory back after an unusually large sweep.
    void forget() noexcept {
        ended.clear();
        if (ended.capacity() > 4096) std::vector<EndedSlot>().swap(ended);
    }

    // The slot of some handle that is DONE, or kNone.
    std::int32_t first_done() const noexcept {
        for (const EndedSlot& end : ended)
            if (end.code == kSuccess) return end.slot;
        return HandleTable::kNone;
    }

    // How many DONE handles have telemetry.
    std::int64_t sample_count() const noexcept {
        return std::count_if(ended.begin(), ended.end(), [](const EndedSlot& end) { return end.sample(); });
    }

  private:
    bool check_all(const HandleTable& table, const OpsV1& ops) {
        const std::uint64_t* ids = table.ids().data();
        const std::int32_t count = table.handle_count();
        for (std::int32_t slot = 0; slot < count; ++slot) {
            cursor = slot;
            const std::int32_t code = checked_status(ops, ids[slot]);
            if (code == kInProgress) continue;
            if (stopped) return true;
            ended.push_back(EndedSlot{slot, code, 0, 0, {}});
        }
        return true;
    }

    bool check_newest(const HandleTable& table, const OpsV1& ops) {
        const std::uint64_t* ids = table.ids().data();
        const std::int32_t count = table.request_count();
        for (std::int32_t index = 0; index < count; ++index) {
            for (std::int32_t slot = table.request(index)->newest; slot != HandleTable::kNone; slot = table.older(slot)) {
                cursor = slot;
                const std::int32_t code = checked_status(ops, ids[slot]);
                if (code == kInProgress) break;
                if (stopped) return true;
                ended.push_back(EndedSlot{slot, code, 0, 0, {}});
            }
        }
        return true;
    }
};

// try_release over typed ids: out[i] tells whether ids[i] was released.
inline void release_safe(const OpsV1& ops, const std::uint64_t* ids, std::int64_t count, char* out) noexcept {
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int32_t code = checked_status(ops, ids[i]);
        const bool must_wait = code == kInProgress || code == kNotFound;
        out[i] = !must_wait && ops.release(ops.context, ids[i]) == kSuccess;
    }
}

}  // namespace kvfast

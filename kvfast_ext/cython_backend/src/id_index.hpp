// From a handle id to its slot: open addressing with linear probing over 4-byte slots. The ids
// themselves stay in the table, so an entry costs 4 bytes and the index at most 11 bytes a handle.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvfast {

class IdIndex {
  public:
    static constexpr std::int32_t kNone = -1;

    std::int32_t find(std::uint64_t id, const std::vector<std::uint64_t>& ids) const noexcept {
        if (cells_.empty()) return kNone;
        for (std::size_t cell = home(id);; cell = next(cell)) {
            const std::int32_t slot = cells_[cell];
            if (slot == kNone || ids[slot] == id) return slot;
        }
    }

    // Make room for one more entry; may throw std::bad_alloc, and changes nothing then.
    void reserve_one(const std::vector<std::uint64_t>& ids) {
        if ((used_ + 1) * 4 <= cells_.size() * 3) return;
        std::vector<std::int32_t> larger(cells_.empty() ? 16 : cells_.size() * 2, kNone);
        cells_.swap(larger);
        for (std::int32_t slot : larger)
            if (slot != kNone) place(ids[slot], slot);
    }

    void insert(std::uint64_t id, std::int32_t slot) noexcept {
        place(id, slot);
        ++used_;
    }

    void move(std::uint64_t id, std::int32_t from, std::int32_t to) noexcept {
        cells_[cell_of(id, from)] = to;
    }

    // Backward-shift deletion: no tombstones, so a table of much coming and going stays fast.
    void erase(std::uint64_t id, std::int32_t slot, const std::vector<std::uint64_t>& ids) noexcept {
        std::size_t hole = cell_of(id, slot);
        for (std::size_t cell = next(hole); cells_[cell] != kNone; cell = next(cell)) {
            const std::size_t wanted = home(ids[cells_[cell]]);
            // Leave an entry whose home lies cyclically in (hole, cell].
            const bool stays = hole <= cell ? (hole < wanted && wanted <= cell) : (hole < wanted || wanted <= cell);
            if (stays) continue;
            cells_[hole] = cells_[cell];
            hole = cell;
        }
        cells_[hole] = kNone;
        --used_;
    }

    // Forget all and take in the slots of `ids` again; allocates nothing.
    void rebuild(const std::vector<std::uint64_t>& ids) noexcept {
        std::fill(cells_.begin(), cells_.end(), kNone);
        used_ = ids.size();
        for (std::size_t slot = 0; slot < used_; ++slot) place(ids[slot], static_cast<std::int32_t>(slot));
    }

    std::size_t capacity_bytes() const noexcept { return cells_.capacity() * sizeof(std::int32_t); }

  private:
    std::size_t home(std::uint64_t id) const noexcept {
        // Fibonacci hashing: ids are aligned addresses or small ints, both poor in their low bits.
        return static_cast<std::size_t>((id * 0x9E3779B97F4A7C15ull) >> 32) & (cells_.size() - 1);
    }
    std::size_t next(std::size_t cell) const noexcept { return (cell + 1) & (cells_.size() - 1); }

    std::size_t cell_of(std::uint64_t id, std::int32_t slot) const noexcept {
        std::size_t cell = home(id);
        while (cells_[cell] != slot) cell = next(cell);
        return cell;
    }

    void place(std::uint64_t id, std::int32_t slot) noexcept {
        std::size_t cell = home(id);
        while (cells_[cell] != kNone) cell = next(cell);
        cells_[cell] = slot;
    }

    std::vector<std::int32_t> cells_;
    std::size_t used_ = 0;
};

}  // namespace kvfast

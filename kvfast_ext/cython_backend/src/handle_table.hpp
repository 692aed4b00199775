// Handles in flight and their requests as structures of arrays. Both are dense: what leaves is
// replaced by the last one, so a sweep never meets a hole. A request's handles form a list from the
// newest to the oldest, which is the order in which the watch scan asks.
//
// Not thread-safe. A sweep only reads it; the table's owner changes it under the GIL (table.py).
#pragma once

#include <cstdint>
#include <vector>

#include "id_index.hpp"

namespace kvfast {

struct Request {
    std::int32_t newest = -1;
    std::int32_t in_flight = 0;
    std::int32_t held = 0;
};

class HandleTable {
  public:
    static constexpr std::int32_t kNone = -1;

    std::int32_t handle_count() const noexcept { return static_cast<std::int32_t>(ids_.size()); }
    std::int32_t request_count() const noexcept { return static_cast<std::int32_t>(requests_.size()); }
    const std::vector<std::uint64_t>& ids() const noexcept { return ids_; }
    std::int32_t owner(std::int32_t slot) const noexcept { return owners_[slot]; }
    std::int32_t older(std::int32_t slot) const noexcept { return older_[slot]; }
    std::int32_t peer(std::int32_t slot) const noexcept { return peers_[slot]; }
    // Valid until a request is opened or closed.
    Request* request(std::int32_t index) noexcept { return &requests_[index]; }
    const Request* request(std::int32_t index) const noexcept { return &requests_[index]; }
    std::int32_t find(std::uint64_t id) const noexcept { return index_.find(id, ids_); }

    std::int32_t outstanding_of(std::int32_t peer) const noexcept {
        return peer < static_cast<std::int32_t>(of_peer_.size()) ? of_peer_[peer] : 0;
    }

    std::int32_t open_request() {
        grow(requests_);
        requests_.push_back(Request{});
        return request_count() - 1;
    }

    // Remove a drained request; the last one takes its place. Returns the moved one's old index,
    // or kNone if it was itself the last.
    std::int32_t close_request(std::int32_t index) noexcept {
        const std::int32_t last = request_count() - 1;
        if (index != last) {
            requests_[index] = requests_[last];
            for (std::int32_t s = requests_[index].newest; s != kNone; s = older_[s]) owners_[s] = index;
        }
        requests_.pop_back();
        return index == last ? kNone : last;
    }

    // Add a handle as its request's newest. Throws std::bad_alloc, and changes nothing then.
    void add(std::int32_t request_index, std::uint64_t id, std::int32_t peer) {
        reserve_one(peer);
        Request& request = requests_[request_index];
        const std::int32_t slot = handle_count();
        ids_.push_back(id);
        owners_.push_back(request_index);
        older_.push_back(request.newest);
        newer_.push_back(kNone);
        peers_.push_back(peer);
        if (request.newest != kNone) newer_[request.newest] = slot;
        request.newest = slot;
        ++request.in_flight;
        ++of_peer_[peer];
        index_.insert(id, slot);
    }

    // Between the two the index is not kept: for taking out many, making it anew is cheaper.
    void begin_removing_many() noexcept { many_ = true; }
    void end_removing_many() noexcept {
        many_ = false;
        index_.rebuild(ids_);
    }

    // Remove a handle; the last one takes its slot. Returns the moved one's old slot, or kNone.
    std::int32_t remove(std::int32_t slot) noexcept {
        unlink(slot);
        if (!many_) index_.erase(ids_[slot], slot, ids_);
        --requests_[owners_[slot]].in_flight;
        --of_peer_[peers_[slot]];
        const std::int32_t last = handle_count() - 1;
        if (slot != last) move(last, slot);
        ids_.pop_back();
        owners_.pop_back();
        older_.pop_back();
        newer_.pop_back();
        peers_.pop_back();
        return slot == last ? kNone : last;
    }

    // Bytes allocated for handles and their index (not for requests).
    std::size_t handle_bytes() const noexcept {
        return ids_.capacity() * sizeof(std::uint64_t) + index_.capacity_bytes() +
               (owners_.capacity() + older_.capacity() + newer_.capacity() + peers_.capacity()) * sizeof(std::int32_t);
    }

  private:
    // A quarter more, not twice as much: memory is counted per handle.
    template <typename T>
    static void grow(std::vector<T>& v) {
        if (v.size() == v.capacity()) v.reserve(v.size() + v.size() / 4 + 16);
    }

    void reserve_one(std::int32_t peer) {
        grow(ids_);
        grow(owners_);
        grow(older_);
        grow(newer_);
        grow(peers_);
        if (peer >= static_cast<std::int32_t>(of_peer_.size())) of_peer_.resize(peer + 1, 0);
        index_.reserve_one(ids_);
    }

    void unlink(std::int32_t slot) noexcept {
        const std::int32_t newer = newer_[slot];
        const std::int32_t older = older_[slot];
        if (newer != kNone) older_[newer] = older;
        else requests_[owners_[slot]].newest = older;
        if (older != kNone) newer_[older] = newer;
    }

    void move(std::int32_t from, std::int32_t to) noexcept {
        if (!many_) index_.move(ids_[from], from, to);
        ids_[to] = ids_[from];
        owners_[to] = owners_[from];
        older_[to] = older_[from];
        newer_[to] = newer_[from];
        peers_[to] = peers_[from];
        if (newer_[to] != kNone) older_[newer_[to]] = to;
        else requests_[owners_[to]].newest = to;
        if (older_[to] != kNone) newer_[older_[to]] = to;
    }

    std::vector<std::uint64_t> ids_;
    std::vector<std::int32_t> owners_, older_, newer_, peers_;
    std::vector<Request> requests_;
    std::vector<std::int32_t> of_peer_;
    IdIndex index_;
    bool many_ = false;
};

}  // namespace kvfast

// Random calls on the compiled table and its sweep, compared with maps from the standard library. Built
// with sanitizers and run without Python, so that leaks count too: fuzz_table SEED STEPS.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "sweep.hpp"

using kvfast::HandleTable;
using Id = std::uint64_t;

#define CHECK(condition)                                                       \
    do {                                                                       \
        if (!(condition)) {                                                    \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);        \
            std::exit(1);                                                      \
        }                                                                      \
    } while (false)

namespace {

struct Engine {  // what the three functions of the ops look at
    std::map<Id, int> states, released;
    long checks = 0;

    static int status(void* context, Id id) {
        Engine& engine = *static_cast<Engine*>(context);
        ++engine.checks;
        CHECK(engine.states.count(id) == 1 && engine.released.count(id) == 0);
        return engine.states[id];
    }
    static int telemetry(void*, Id id, kvfast::Telemetry* out) {
        *out = kvfast::Telemetry{0, 1, 2, id, 3};
        return 0;
    }
    static int release(void* context, Id id) {
        Engine& engine = *static_cast<Engine*>(context);
        CHECK(engine.states[id] == 0);
        ++engine.released[id];
        return 0;
    }
};

class Fuzz {
  public:
    explicit Fuzz(unsigned seed) : random_(seed) {
        // Ids whose hash puts them into few cells where the index ends and begins anew, and plain ones.
        Id inverse = 1;
        for (int i = 0; i < 6; ++i) inverse *= 2 - 0x9E3779B97F4A7C15ull * inverse;
        for (Id n = 0; n < 200; ++n) {
            const Id cells[] = {0xFFFFF, 0, 1};
            free_.push_back(inverse * (n << 52 | cells[n % 3] << 32 | n));
            free_.push_back(0x7F1234567000ull + 64 * n);
        }
        ops_ = kvfast::OpsV1{1, sizeof(kvfast::OpsV1), &engine_, Engine::status, Engine::telemetry, Engine::release};
    }

    void step() {
        // The table fills and empties in turns, so that probes get long and the index grows.
        if (++steps_ % 400 == 0) growing_ = !growing_;
        switch (below(10)) {
            case 0: open(); break;
            case 1: end(growing_ ? 60 : 3); break;
            case 2: sweep(below(2) == 0); break;
            default: if (growing_) add(); else if (below(4) == 0) sweep(false);
        }
        compare();
    }

  private:
    int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }

    void open() {
        if (requests_.size() < 40) {
            CHECK(table_.open_request() == static_cast<int>(requests_.size()));
            requests_.emplace_back();
        }
    }

    void add() {
        if (requests_.empty() || free_.empty()) return;
        const int request = below(static_cast<int>(requests_.size()));
        const std::size_t which = random_() % free_.size();
        const Id id = free_[which];
        free_[which] = free_.back();
        free_.pop_back();
        const int peer = below(7);
        CHECK(table_.find(id) == HandleTable::kNone);
        table_.add(request, id, peer);
        requests_[request].push_back(id);
        peers_[id] = peer;
        engine_.states[id] = 1;
        engine_.released.erase(id);
    }

    void end(int one_in) {
        for (const std::vector<Id>& ids : requests_)
            for (Id id : ids)
                if (below(one_in) == 0) engine_.states[id] = below(3) == 0 ? -3 : 0;
    }

    // As CompiledStore.collect does: highest slot first, then drop drained requests by swapping.
    void sweep(bool full) {
        const long before = engine_.checks;
        std::set<Id> expected = full ? all_ended() : ended_from_newest();
        CHECK(sweep_.check(table_, ops_, full));
        CHECK(engine_.checks - before <= table_.handle_count());
        sweep_.finish(table_, ops_);
        sweep_.highest_slot_first();
        for (const kvfast::EndedSlot& end : sweep_.ended) {
            const Id id = table_.ids()[end.slot];
            CHECK(expected.erase(id) == 1 && end.code == engine_.states[id]);
            CHECK(end.code != 0 || (end.telemetry.bytes == id && engine_.released[id] == 1));
            remove(end.slot, id);
        }
        CHECK(expected.empty());
    }

    void remove(int slot, Id id) {
        const int owner = table_.owner(slot);
        CHECK(table_.find(id) == slot && table_.peer(slot) == peers_[id]);
        table_.remove(slot);
        CHECK(table_.find(id) == HandleTable::kNone);
        std::vector<Id>& ids = requests_[owner];
        for (std::size_t i = 0; i < ids.size(); ++i)
            if (ids[i] == id) { ids.erase(ids.begin() + static_cast<long>(i)); break; }
        peers_.erase(id);
        free_.push_back(id);
        if (ids.empty()) {
            table_.close_request(owner);
            requests_[owner] = requests_.back();
            requests_.pop_back();
        }
    }

    std::set<Id> all_ended() {
        std::set<Id> found;
        for (const std::vector<Id>& ids : requests_)
            for (Id id : ids)
                if (engine_.states[id] != 1) found.insert(id);
        return found;
    }

    std::set<Id> ended_from_newest() {
        std::set<Id> found;
        for (const std::vector<Id>& ids : requests_)
            for (auto id = ids.rbegin(); id != ids.rend() && engine_.states[*id] != 1; ++id) found.insert(*id);
        return found;
    }

    void compare() {
        CHECK(table_.request_count() == static_cast<int>(requests_.size()));
        std::size_t handles = 0;
        std::map<int, int> of_peer;
        for (int r = 0; r < table_.request_count(); ++r) {
            const std::vector<Id>& ids = requests_[r];
            CHECK(table_.request(r)->in_flight == static_cast<int>(ids.size()));
            int slot = table_.request(r)->newest;
            for (auto id = ids.rbegin(); id != ids.rend(); ++id, slot = table_.older(slot)) {
                CHECK(table_.ids()[slot] == *id && table_.owner(slot) == r && table_.find(*id) == slot);
                ++of_peer[table_.peer(slot)];
            }
            CHECK(slot == HandleTable::kNone);
            handles += ids.size();
        }
        CHECK(table_.handle_count() == static_cast<int>(handles));
        for (int peer = 0; peer < 9; ++peer) CHECK(table_.outstanding_of(peer) == of_peer[peer]);
        if (!free_.empty()) CHECK(table_.find(free_[random_() % free_.size()]) == HandleTable::kNone);
    }

    int steps_ = 0;
    bool growing_ = true;
    std::mt19937 random_;
    std::vector<Id> free_;
    std::vector<std::vector<Id>> requests_;  // oldest first
    std::map<Id, int> peers_;
    Engine engine_;
    kvfast::OpsV1 ops_{};
    HandleTable table_;
    kvfast::Sweep sweep_;
};

}  // namespace

int main(int argc, char** argv) {
    const unsigned seed = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1;
    const int steps = argc > 2 ? std::atoi(argv[2]) : 20000;
    Fuzz fuzz(seed);
    for (int i = 0; i < steps; ++i) fuzz.step();
    std::printf("seed %u: %d steps\n", seed, steps);
    return 0;
}

// A libnixl that moves nothing: the three functions that kvfast resolves, over requests that a test
// lays out (native_double.py has the same structs). It counts what must not happen.
#include <cstdint>
#include <stdexcept>

class nixlXferReqH {
  public:
    std::int32_t state, release_code, telemetry_code, throws;
    std::int32_t released, checks, misuses, unused;
    std::int64_t telemetry[5];  // startTime, postDuration, xferDuration, totalBytes, descCount
};

struct nixlXferTelemetry {
    std::int64_t words[16];
};

class nixlAgent {
  public:
    std::int64_t magic, layout, calls;

    int getXferStatus(nixlXferReqH* request) const;
    int getXferTelemetry(const nixlXferReqH* request, nixlXferTelemetry& out) const;
    int releaseXferReq(nixlXferReqH* request) const;

  private:
    nixlXferReqH& enter(const nixlXferReqH* given) const;
};

nixlXferReqH& nixlAgent::enter(const nixlXferReqH* given) const {
    nixlXferReqH& request = *const_cast<nixlXferReqH*>(given);
    if (magic != 0x6e69786c || request.released != 0) ++request.misuses;
    ++const_cast<nixlAgent*>(this)->calls;
    return request;
}

int nixlAgent::getXferStatus(nixlXferReqH* given) const {
    nixlXferReqH& request = enter(given);
    ++request.checks;
    if (request.throws == 1) throw std::runtime_error("status");
    if (request.throws == 4) throw 4;  // no std::exception
    return request.state;
}

int nixlAgent::getXferTelemetry(const nixlXferReqH* given, nixlXferTelemetry& out) const {
    nixlXferReqH& request = enter(given);
    if (request.throws == 2) throw std::runtime_error("telemetry");
    if (request.telemetry_code != 0) return request.telemetry_code;
    // layout 0: as NIXL's today; 1: a word more in front; 2: much longer; 3: two fields swapped
    for (int i = 0; i < 5; ++i) out.words[(layout == 1) + i] = request.telemetry[i];
    if (layout == 2) for (int i = 5; i < 16; ++i) out.words[i] = -1;
    if (layout == 3) { out.words[1] = request.telemetry[2]; out.words[2] = request.telemetry[1]; }
    return 0;
}

int nixlAgent::releaseXferReq(nixlXferReqH* given) const {
    nixlXferReqH& request = enter(given);
    if (request.state == 1) ++request.misuses;  // in progress
    if (request.throws == 3) throw std::runtime_error("release");
    if (request.release_code == 0) ++request.released;
    return request.release_code;
}

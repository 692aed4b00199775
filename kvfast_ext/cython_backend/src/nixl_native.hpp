// Native calls into the libnixl that the agent's own binding module uses, without NIXL's headers.
//
// What is assumed, and how it is checked before it is trusted:
// * a `nixlAgent` C++ class behind the Python object: pybind11's conduit hands out the pointer only if
//   the type's name and the platform ABI id are the same;
// * three const member functions: found by their mangled names, which contain the argument types;
//   under the Itanium C++ ABI such a function takes `this` as its first argument;
// * the layout of nixlXferTelemetry: compared with the binding's values on the first DONE handle.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>
#include <typeinfo>

#include "ops_v1.hpp"

// Only its type_info is used: the conduit compares names. It must be of this name, in no namespace.
class nixlAgent {};

namespace kvfast {

struct NixlCalls {
    const void* agent = nullptr;
    std::int32_t (*get_status)(const void* agent, void* request) = nullptr;
    std::int32_t (*get_telemetry)(const void* agent, const void* request, Telemetry* out) = nullptr;
    std::int32_t (*release)(const void* agent, void* request) = nullptr;
};

inline const void* nixl_agent_type() noexcept { return &typeid(nixlAgent); }
inline const char* type_info_name() noexcept { return typeid(std::type_info).name(); }

// NIXL's wheels are built by GCC with the new string ABI. A build of ours that differs could not
// call them, and says so by an id that no NIXL has.
#if defined(__GLIBCXX__) && defined(_GLIBCXX_USE_CXX11_ABI) && _GLIBCXX_USE_CXX11_ABI && \
    defined(__GXX_ABI_VERSION) && __GXX_ABI_VERSION >= 1002 && __GXX_ABI_VERSION < 2000
inline const char* platform_abi_id() noexcept { return "system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1"; }
#else
inline const char* platform_abi_id() noexcept { return "kvfast_was_built_for_another_abi"; }
#endif

template <typename Function>
inline bool resolve(void* library, const char* symbol, Function& out, std::string& missing) {
    out = reinterpret_cast<Function>(dlsym(library, symbol));
    if (out == nullptr) missing = symbol;
    return out != nullptr;
}

// Find the three functions in what `module_file`, which must be loaded, was linked with. Returns
// an empty string, or what went wrong.
inline std::string resolve_calls(const char* module_file, NixlCalls& calls) {
    void* library = dlopen(module_file, RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return std::string(module_file) + " is not loaded as a shared library";
    std::string missing;
    const bool found =
        resolve(library, "_ZNK9nixlAgent13getXferStatusEP12nixlXferReqH", calls.get_status, missing) &&
        resolve(library, "_ZNK9nixlAgent16getXferTelemetryEPK12nixlXferReqHR17nixlXferTelemetry",
                calls.get_telemetry, missing) &&
        resolve(library, "_ZNK9nixlAgent14releaseXferReqEP12nixlXferReqH", calls.release, missing);
    dlclose(library);  // Drops our count only: the interpreter keeps its modules loaded.
    return found ? "" : "libnixl lacks the symbol " + missing;
}

// The file that a resolved function came from, for the doctor.
inline std::string library_of(const NixlCalls& calls) {
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(calls.get_status), &info) == 0 || info.dli_fname == nullptr) return "";
    return info.dli_fname;
}

inline void* as_request(std::uint64_t handle) noexcept { return reinterpret_cast<void*>(handle); }

inline std::int32_t nixl_status(void* context, std::uint64_t handle) noexcept {
    const NixlCalls& nixl = *static_cast<NixlCalls*>(context);
    try {
        return nixl.get_status(nixl.agent, as_request(handle));
    } catch (...) {
        return kException;
    }
}

inline std::int32_t nixl_telemetry(void* context, std::uint64_t handle, Telemetry* out) noexcept {
    const NixlCalls& nixl = *static_cast<NixlCalls*>(context);
    // More room than the struct that we know: a longer one would be found out by its values.
    struct { Telemetry known; std::uint64_t spare[16]; } room{};
    try {
        const std::int32_t code = nixl.get_telemetry(nixl.agent, as_request(handle), &room.known);
        *out = room.known;
        return code;
    } catch (...) {
        return kException;
    }
}

inline std::int32_t nixl_release(void* context, std::uint64_t handle) noexcept {
    const NixlCalls& nixl = *static_cast<NixlCalls*>(context);
    try {
        return nixl.release(nixl.agent, as_request(handle));
    } catch (...) {
        return kException;
    }
}

}  // namespace kvfast

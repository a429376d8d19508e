// A request's path as the table of endpoints has it.
#pragma once

#include <string>
#include <string_view>

namespace lapidary {

// What clients add or leave out is put right: a slash at the end goes, and paths of OpenAI's and
// Anthropic's APIs get the /v1 that a base address without it has lost.
std::string CanonicalPath(std::string_view path);

// "/v1/models/{id}" for "/v1/models/gemma": the pattern of a canonical path whose last or last but
// one segment is a name; other paths as they are.
std::string RoutePattern(std::string_view canonical_path);

// The name in it, decoded: "org/model" of "/v1/models/org%2Fmodel"; empty where there is none.
std::string NameInPath(std::string_view canonical_path);

}  // namespace lapidary

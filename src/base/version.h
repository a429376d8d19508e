#pragma once

namespace lapidary {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace lapidary

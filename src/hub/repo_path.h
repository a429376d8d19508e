// Checks of names from outside, before they become parts of a path on this machine.
#pragma once

#include <string_view>

namespace lapidary::hub {

// A file's place inside its repository: relative, of plain parts, without control
// characters and backslashes. Nothing that passes leaves the folder that it is appended to.
bool IsRepoPath(std::string_view path);

// A branch, a tag, or a commit by its start: becomes a path below refs/.
bool IsRevision(std::string_view revision);

bool IsCommit(std::string_view text);  // 40 hexadecimal digits, lower case

// What a blob is stored under: a sha256, or of small files the SHA-1 that git has. Lower case.
bool IsBlobName(std::string_view text);

}  // namespace lapidary::hub

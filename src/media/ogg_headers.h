// Checks the headers of Ogg files from outside.
#pragma once

#include <string_view>

#include "base/status.h"

namespace lapidary {

// Of a file that begins with "OggS": its first page is whole and, if it begins a Vorbis stream, all
// three headers of that are. libsndfile does not give back what it allocated for a stream whose
// headers it refuses (about 6 kB a file), and decodes with two of them whatever they hold.
Status CheckOggHeaders(std::string_view file);

}  // namespace lapidary

// What follows from a program, for the host side of a resident step.
#pragma once

#include "ops/cuda/resident/resident_scratch.h"
#include "ops/cuda/resident/resident_step.h"

namespace lapidary::cuda {

int ResidentBlocks(const DeviceInfo& device, const ResidentWidths& widths);
ResidentExchanges ExchangesOf(const DecoderProgram& program);
// Whether every phase is one that the kernel knows.
bool PhasesAreResident(const DecoderProgram& program);
// Whether the keys of all layers of a group can be dealt out alike: same heads and window, and none
// where entries come in runs.
bool GroupsAreUniform(const DecoderProgram& program);
// Whether all layers with experts have as many, as wide ones.
bool ExpertsAreUniform(const DecoderProgram& program);
// Whether all weights are in formats that the kernel multiplies with.
bool WeightsAreResident(const DecoderProgram& program);

}  // namespace lapidary::cuda

// The makers of the codecs, one file each, for the registry alone.
//
// A maker is given words of its own name; it checks keys and values.
#pragma once

#include <memory>

#include "compress/codec.h"

namespace hora {

using CodecResult = Result<std::shared_ptr<const Codec>>;

/// Numbers as they are. Kind summed: what runs is a plain schedule.
CodecResult make_none_codec(const CodecWords& words);
/// float16: half the bytes of float32, no scale.
CodecResult make_fp16_codec(const CodecWords& words);
/// bfloat16: half the bytes, float32's range.
CodecResult make_bf16_codec(const CodecWords& words);
/// 8-bit integers with a float32 scale per 256 elements.
CodecResult make_int8_codec(const CodecWords& words);
/// The largest elements, as (index, value).
CodecResult make_topk_codec(const CodecWords& words);

/// Error invalid_argument about the words of a codec.
tl::unexpected<Error> bad_codec(const CodecWords& words, const std::string& what);
/// Error unless the words have no keys but these.
Result<void> only_keys(const CodecWords& words, std::initializer_list<std::string_view> keys);

}  // namespace hora

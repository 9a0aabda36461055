package parser

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/pierrec/lz4/v4"
)

// The library reads no LZ4 as Hadoop writes it, and no empty body of a compressed data page of
// version 2, which parquet-mr writes for pages of nulls alone.
func init() {
	compress.RegisterCodec(compress.Codecs.Lz4, hadoopLZ4{})
	for _, c := range []compress.Compression{
		compress.Codecs.Snappy, compress.Codecs.Gzip, compress.Codecs.Brotli, compress.Codecs.Zstd, compress.Codecs.Lz4Raw, compress.Codecs.Lz4,
	} {
		if codec, err := compress.GetCodec(c); err == nil {
			compress.RegisterCodec(c, emptyPages(codec))
		}
	}
}

// emptyPages is a codec that decompresses nothing to nothing.
func emptyPages(codec compress.Codec) compress.Codec {
	if stream, ok := codec.(compress.StreamingCodec); ok {
		return emptyStreams{emptyBlocks{codec}, stream}
	}
	return emptyBlocks{codec}
}

type emptyBlocks struct{ compress.Codec }

// DecodeWithError implements compress.ErrorCodec.
func (c emptyBlocks) DecodeWithError(dst, src []byte) ([]byte, error) {
	if len(src) == 0 {
		return dst[:0], nil
	}
	return compress.Decode(c.Codec, dst, src)
}

type emptyStreams struct {
	emptyBlocks
	compress.StreamingCodec
}

// hadoopLZ4 decodes Parquet's codec LZ4: blocks, each behind its length decompressed and
// compressed, as Hadoop writes them, or one bare block, as other programs did. It is read only.
type hadoopLZ4 struct{ compress.Codec }

// Decode implements compress.Codec.
func (c hadoopLZ4) Decode(dst, src []byte) []byte {
	out, err := c.DecodeWithError(dst, src)
	if err != nil {
		panic(err) // compress.Decode calls DecodeWithError
	}
	return out
}

// DecodeWithError implements compress.ErrorCodec. dst has the length of the page.
func (hadoopLZ4) DecodeWithError(dst, src []byte) ([]byte, error) {
	if n, ok := hadoopBlocks(dst, src); ok {
		return dst[:n], nil
	}
	n, err := lz4.UncompressBlock(src, dst)
	if err != nil {
		return nil, err
	}
	return dst[:n], nil
}

func hadoopBlocks(dst, src []byte) (n int, ok bool) {
	const head = 8
	for len(src) > 0 {
		if len(src) < head {
			return 0, false
		}
		plain, packed := uint64(binary.BigEndian.Uint32(src)), uint64(binary.BigEndian.Uint32(src[4:]))
		if src = src[head:]; plain > uint64(len(dst)-n) || packed > uint64(len(src)) {
			return 0, false
		}
		got, err := lz4.UncompressBlock(src[:packed], dst[n:])
		if err != nil || uint64(got) != plain { //nolint:gosec // a length
			return 0, false
		}
		n, src = n+got, src[packed:]
	}
	return n, true
}

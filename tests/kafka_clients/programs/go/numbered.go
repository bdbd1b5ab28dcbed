package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	burst         = 10
	unansweredMax = 1000
	pause         = 10 * time.Millisecond
	flushWait     = 2 * time.Minute
	backoff       = 20 * time.Millisecond
	backoffMax    = 100 * time.Millisecond
)

// What is printed; answers come while records are sent.
type told struct {
	lock sync.Mutex
	out  *bufio.Writer
}

func (t *told) line(format string, values ...any) {
	t.lock.Lock()
	defer t.lock.Unlock()
	fmt.Fprintf(t.out, format+"\n", values...)
}

func (t *told) flush() {
	t.lock.Lock()
	defer t.lock.Unlock()
	if err := t.out.Flush(); err != nil {
		panic(err)
	}
}

// Writes numbered records until the input ends: go-clients franz-go-numbered HOST:PORT TOPIC PARTITIONS.
// ../numbered/__init__.py says what it prints.
func writeNumbered(bootstrap, topic, count string) {
	partitions, err := strconv.Atoi(count)
	if err != nil {
		panic(err)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ClientID("franz-go"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(2*time.Millisecond), kgo.ProducerBatchMaxBytes(1000),
		kgo.MetadataMinAge(backoffMax),
		kgo.RetryBackoffFn(func(tries int) time.Duration { return min(backoff<<min(tries, 5), backoffMax) }),
	)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	said := &told{out: bufio.NewWriterSize(os.Stdout, 1<<16)}
	stopping := awaitStart(said)
	var answered atomic.Int64
	for sent := 0; ; {
		if int64(sent*partitions)-answered.Load() < unansweredMax {
			first := sent
			sent += burst
			said.line("sent %d", sent)
			for number := first; number < sent; number++ {
				for partition := range partitions {
					sendNumbered(client, said, &answered, topic, int32(partition), number)
				}
			}
		}
		said.flush()
		select {
		case <-stopping:
			ctx, cancel := context.WithTimeout(context.Background(), flushWait)
			defer cancel()
			if err := client.Flush(ctx); err != nil {
				panic(err)
			}
			said.flush()
			return
		case <-time.After(pause):
		}
	}
}

func sendNumbered(client *kgo.Client, said *told, answered *atomic.Int64, topic string, partition int32, number int) {
	record := &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Appendf(nil, "franz-go %d", number)}
	client.Produce(context.Background(), record, func(done *kgo.Record, err error) {
		answered.Add(1)
		if err != nil {
			said.line("failed %d %d %s", partition, number, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			said.line("acked %d %d %d", done.Partition, number, done.Offset)
		}
	})
}

// Returns when the program shall begin, and closes the channel when it shall stop.
func awaitStart(said *told) <-chan struct{} {
	said.line("ready")
	said.flush()
	input := bufio.NewReader(os.Stdin)
	if _, err := input.ReadString('\n'); err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := io.Copy(io.Discard, input); err != nil {
			panic(err)
		}
	}()
	return ended
}

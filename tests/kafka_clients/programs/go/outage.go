package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// franz-go through an outage, in the words of tests/kafka_clients/outages/programs:
// go-clients outage HOST:PORT PREFIX default|short INTERVAL_MS RECORD_BYTES.
type outage struct {
	bootstrap, prefix string
	isShort           bool
	interval, pause   time.Duration
	recordBytes       int
	stopping          chan struct{}
	out               sync.Mutex
}

const outagePartitions = 2

func ridesOutOutage(arguments []string) {
	intervalMs, err := strconv.Atoi(arguments[3])
	if err != nil {
		panic(err)
	}
	recordBytes, err := strconv.Atoi(arguments[4])
	if err != nil {
		panic(err)
	}
	o := &outage{
		bootstrap: arguments[0], prefix: arguments[1], isShort: arguments[2] == "short",
		interval: time.Duration(intervalMs) * time.Millisecond, pause: 5 * time.Second,
		recordBytes: recordBytes, stopping: make(chan struct{}),
	}
	if o.isShort {
		o.pause = time.Second
	}
	go o.write("writer", o.prefix)
	go o.read("reader", o.prefix)
	o.administer()
	o.tell("ready")
	told := bufio.NewScanner(os.Stdin)
	for told.Scan() {
		switch told.Text() {
		case "late":
			go o.write("late-writer", o.prefix+"-late")
			go o.read("late-reader", o.prefix)
		case "stop":
			close(o.stopping)
		}
	}
}

func (o *outage) client(role string, more ...kgo.Opt) *kgo.Client {
	options := []kgo.Opt{kgo.SeedBrokers(o.bootstrap), kgo.ClientID(role)}
	if o.isShort {
		// Its own is 5 s: so long it waits before it asks again who leads.
		options = append(options, kgo.MetadataMinAge(250*time.Millisecond))
	}
	client, err := kgo.NewClient(append(options, more...)...)
	if err != nil {
		panic(err)
	}
	return client
}

func (o *outage) write(role, topic string) {
	options := []kgo.Opt{
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(5 * time.Millisecond),
	}
	if o.isShort {
		options = append(options, kgo.ProduceRequestTimeout(3 * time.Second))
	}
	client := o.client(role, options...)
	for number := 0; ; number++ {
		select {
		case <-o.stopping:
			if err := client.Flush(context.Background()); err != nil {
				panic(err)
			}
			o.tell("flushed", role)
			return
		case <-time.After(o.interval):
		}
		name := fmt.Sprintf("%s-%d", role, number)
		value := []byte(name + " ")
		value = append(value, strings.Repeat(".", max(0, o.recordBytes-len(value)))...)
		record := &kgo.Record{Topic: topic, Partition: int32(number % outagePartitions), Value: value}
		client.Produce(context.Background(), record, func(placed *kgo.Record, err error) {
			if err != nil {
				o.tell("failed", role, name, err)
			} else {
				o.tell("acked", role, placed.Partition, placed.Offset, name)
			}
		})
	}
}

func (o *outage) read(role, topic string) {
	start := map[int32]kgo.Offset{}
	for number := range int32(outagePartitions) {
		start[number] = kgo.NewOffset().At(0)
	}
	client := o.client(role,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	for {
		fetches := client.PollFetches(context.Background())
		fetches.EachError(func(_ string, _ int32, err error) { o.tell("error", role, err) })
		fetches.EachRecord(func(record *kgo.Record) {
			name, _, _ := strings.Cut(string(record.Value), " ")
			o.tell("read", role, record.Partition, record.Offset, name)
		})
	}
}

func (o *outage) administer() {
	admin := kadm.NewClient(o.client("admin"))
	topic := o.prefix + "-admin"
	numbers := 0
	days := "900000000"
	first := kadm.Offsets{}
	first.AddOffset(topic, 0, 1, -1)
	o.repeat("create_topic", func(ctx context.Context) error {
		numbers++
		_, err := admin.CreateTopic(ctx, 1, 1, nil, fmt.Sprintf("%s-new-%d", o.prefix, numbers))
		return err
	})
	o.repeat("alter_configs", func(ctx context.Context) error {
		altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{
			{Op: kadm.SetConfig, Name: "retention.ms", Value: &days},
		}, topic)
		if err == nil {
			err = altered[0].Err
		}
		return err
	})
	o.repeat("describe_configs", func(ctx context.Context) error {
		described, err := admin.DescribeTopicConfigs(ctx, topic)
		if err == nil {
			err = described[0].Err
		}
		return err
	})
	o.repeat("list_offsets", func(ctx context.Context) error {
		listed, err := admin.ListEndOffsets(ctx, topic)
		return firstError(err, listed.Error())
	})
	o.repeat("delete_records", func(ctx context.Context) error {
		deleted, err := admin.DeleteRecords(ctx, first)
		return firstError(err, deleted.Error())
	})
	o.repeat("list_topics", func(ctx context.Context) error {
		_, err := admin.ListTopics(ctx)
		return err
	})
}

// Again and again; a call has a minute, since franz-go has no time for calls of its own.
func (o *outage) repeat(name string, call func(context.Context) error) {
	go func() {
		for {
			time.Sleep(o.pause)
			began := time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			told := ""
			if err := call(ctx); err != nil {
				told = err.Error()
			}
			cancel()
			o.tell("call", name, fmt.Sprintf("%.2f", time.Since(began).Seconds()), told)
		}
	}()
}

func (o *outage) tell(fields ...any) {
	said := make([]string, len(fields))
	for at, field := range fields {
		said[at] = strings.Join(strings.Fields(fmt.Sprint(field)), " ")
	}
	o.out.Lock()
	defer o.out.Unlock()
	fmt.Println(strings.Join(said, "\t"))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

type franz struct {
	bootstrap, prefix string
	admin             *kadm.Client
}

var franzCodecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func init() {
	clients["franz-go"] = franzGo
}

func franzGo(bootstrap, prefix string) []namedCase {
	f := &franz{bootstrap: bootstrap, prefix: prefix}
	f.admin = kadm.NewClient(f.client())
	return []namedCase{
		{"codecs", f.codecs}, {"acks", f.acks}, {"idempotent", f.idempotent},
		{"auto_create", f.autoCreate}, {"positions", f.positions}, {"metadata", f.metadata},
		{"topics", f.topics}, {"delete_records", f.deleteRecords}, {"offsets", f.offsets},
		{"configs", f.configs}, {"too_large", f.tooLarge}, {"transactions", f.transactions},
		{"fencing", f.fencing}, {"transaction_timeout", f.transactionTimeout}, {"cluster", f.cluster},
	}
}

func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), wait)
}

func (f *franz) client(more ...kgo.Opt) *kgo.Client {
	options := append([]kgo.Opt{
		kgo.SeedBrokers(f.bootstrap), kgo.ClientID("franz-go"),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}, more...)
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	return client
}

func (f *franz) create(name string, partitions int32, configs map[string]*string) error {
	ctx, cancel := limited()
	defer cancel()
	_, err := f.admin.CreateTopic(ctx, partitions, 1, configs, name)
	return err
}

func (f *franz) topic(name string, partitions int32, configs map[string]*string) (string, error) {
	full := f.prefix + "-" + name
	if err := f.create(full, partitions, configs); err != nil {
		return full, err
	}
	ctx, cancel := limited()
	defer cancel()
	return full, soon(func() error {
		found, err := f.admin.Metadata(ctx, full)
		return firstError(err, expect(len(found.Topics[full].Partitions), partitions))
	})
}

// The offsets of the records.
func (f *franz) produce(topic string, written []record, options ...kgo.Opt) ([]int64, error) {
	ctx, cancel := limited()
	defer cancel()
	client := f.client(append(options, kgo.ProducerLinger(20*time.Millisecond))...)
	defer client.Close()
	made := make([]*kgo.Record, len(written))
	for at, one := range written {
		headers := []kgo.RecordHeader{}
		for _, h := range one.headers {
			headers = append(headers, kgo.RecordHeader{Key: h.key, Value: h.value})
		}
		made[at] = &kgo.Record{
			Topic: topic, Key: one.key, Value: one.value, Headers: headers,
			Timestamp: time.UnixMilli(one.timestampMs),
		}
	}
	results := client.ProduceSync(ctx, made...)
	offsets := make([]int64, len(results))
	for at, result := range results {
		offsets[at] = result.Record.Offset
	}
	slices.Sort(offsets)
	return offsets, results.FirstErr()
}

func (f *franz) consume(topic string, count int, from kgo.Offset) ([]*kgo.Record, error) {
	client := f.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: from}}))
	defer client.Close()
	return polled(client, count)
}

func polled(client *kgo.Client, count int) ([]*kgo.Record, error) {
	ctx, cancel := limited()
	defer cancel()
	var seen []*kgo.Record
	for len(seen) < count {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		seen = append(seen, fetches.Records()...)
	}
	return seen[:count], nil
}

func plain(seen []*kgo.Record) []record {
	made := make([]record, len(seen))
	for at, one := range seen {
		var headers []header
		for _, h := range one.Headers {
			headers = append(headers, header{h.Key, h.Value})
		}
		made[at] = record{one.Key, one.Value, headers, one.Timestamp.UnixMilli()}
	}
	return made
}

func (f *franz) roundTrip(topic string, written []record, options ...kgo.Opt) error {
	offsets, err := f.produce(topic, written, options...)
	if err != nil {
		return err
	}
	if err := expect(offsets, offsetsOf(len(written))); err != nil {
		return err
	}
	seen, err := f.consume(topic, len(written), kgo.NewOffset().AtStart())
	if err != nil {
		return err
	}
	return expectRecords(plain(seen), written)
}

func failsWith(wanted, err error) error {
	if errors.Is(err, wanted) {
		return nil
	}
	return fmt.Errorf("expected %v, saw %v", wanted, err)
}

func (f *franz) codecs() error {
	for _, codec := range codecs {
		name, err := f.topic(codec, 1, nil)
		if err != nil {
			return err
		}
		if err := f.roundTrip(name, records(), kgo.ProducerBatchCompression(franzCodecs[codec])); err != nil {
			return fmt.Errorf("%s: %w", codec, err)
		}
	}
	return nil
}

func (f *franz) acks() error {
	name, err := f.topic("acks", 1, nil)
	if err != nil {
		return err
	}
	for _, acks := range []kgo.Acks{kgo.NoAck(), kgo.LeaderAck(), kgo.AllISRAcks()} {
		if _, err := f.produce(name, records(), kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite()); err != nil {
			return err
		}
	}
	seen, err := f.consume(name, 15, kgo.NewOffset().AtStart())
	if err != nil {
		return err
	}
	return expectRecords(plain(seen), slices.Concat(records(), records(), records()))
}

func (f *franz) idempotent() error {
	name, err := f.topic("idempotent", 1, nil)
	if err != nil {
		return err
	}
	return f.roundTrip(name, numbered(2000), kgo.ProducerBatchMaxBytes(1000))
}

func (f *franz) autoCreate() error {
	return f.roundTrip(f.prefix+"-auto", records()[:1], kgo.AllowAutoTopicCreation())
}

func (f *franz) positions() error {
	name, err := f.topic("positions", 1, nil)
	if err != nil {
		return err
	}
	if _, err := f.produce(name, records()); err != nil {
		return err
	}
	for _, start := range []struct {
		offset kgo.Offset
		wanted int64
	}{
		{kgo.NewOffset().AtStart(), 0},
		{kgo.NewOffset().AfterMilli(baseMs + 2000), 2},
		{kgo.NewOffset().AtEnd().Relative(-1), 4},
	} {
		seen, err := f.consume(name, 1, start.offset)
		if err != nil {
			return err
		}
		if err := expect(seen[0].Offset, start.wanted); err != nil {
			return err
		}
	}
	return nil
}

func (f *franz) metadata() error {
	name, err := f.topic("metadata", 3, nil)
	if err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.Metadata(ctx, name)
	if err != nil {
		return err
	}
	nodes := found.Brokers.NodeIDs()
	for _, part := range found.Topics[name].Partitions {
		if !slices.Contains(nodes, part.Leader) {
			return fmt.Errorf("leader %d is none of %v", part.Leader, nodes)
		}
	}
	missing, err := f.admin.ListTopics(ctx, f.prefix+"-missing")
	return firstError(
		err,
		expect(len(found.Topics[name].Partitions), 3),
		expect(found.Topics[name].ID == kadm.TopicID{}, false),
		failsWith(kerr.UnknownTopicOrPartition, missing[f.prefix+"-missing"].Err),
	)
}

func (f *franz) topics() error {
	name, err := f.topic("topics", 2, nil)
	if err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	grow := func(partitions int) error {
		answers, err := f.admin.UpdatePartitions(ctx, partitions, name)
		return firstError(err, answers.Error())
	}
	remove := func() error {
		answers, err := f.admin.DeleteTopics(ctx, name)
		return firstError(err, answers.Error())
	}
	return firstError(
		failsWith(kerr.TopicAlreadyExists, f.create(name, 1, nil)),
		failsWith(kerr.InvalidTopicException, f.create("not/a/name", 1, nil)),
		failsWith(kerr.InvalidPartitions, f.create(f.prefix+"-no-partitions", 0, nil)),
		grow(4),
		failsWith(kerr.InvalidPartitions, grow(3)),
		remove(),
		failsWith(kerr.UnknownTopicOrPartition, remove()),
	)
}

func (f *franz) deleteRecords() error {
	name, err := f.topic("delete-records", 1, nil)
	if err != nil {
		return err
	}
	if _, err := f.produce(name, records()); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	remove := func(offset int64) (int64, error) {
		asked := kadm.Offsets{}
		asked.AddOffset(name, 0, offset, -1)
		answers, err := f.admin.DeleteRecords(ctx, asked)
		return answers[name][0].LowWatermark, firstError(err, answers.Error())
	}
	low, err := remove(3)
	if err != nil {
		return err
	}
	seen, err := f.consume(name, 1, kgo.NewOffset().AtStart())
	if err != nil {
		return err
	}
	_, beyond := remove(99)
	return firstError(expect(low, 3), expect(seen[0].Offset, 3), failsWith(kerr.OffsetOutOfRange, beyond))
}

func (f *franz) offsets() error {
	name, err := f.topic("offsets", 1, nil)
	if err != nil {
		return err
	}
	if _, err := f.produce(name, records()); err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	for _, one := range []struct {
		list   func() (kadm.ListedOffsets, error)
		wanted int64
	}{
		{func() (kadm.ListedOffsets, error) { return f.admin.ListStartOffsets(ctx, name) }, 0},
		{func() (kadm.ListedOffsets, error) { return f.admin.ListEndOffsets(ctx, name) }, 5},
		{func() (kadm.ListedOffsets, error) { return f.admin.ListOffsetsAfterMilli(ctx, baseMs+1500, name) }, 2},
		{func() (kadm.ListedOffsets, error) { return f.admin.ListMaxTimestampOffsets(ctx, name) }, 4},
	} {
		listed, err := one.list()
		if err != nil {
			return err
		}
		if err := expect(listed[name][0].Offset, one.wanted); err != nil {
			return err
		}
	}
	return nil
}

func (f *franz) retention(name string) (string, error) {
	ctx, cancel := limited()
	defer cancel()
	described, err := f.admin.DescribeTopicConfigs(ctx, name)
	if err != nil {
		return "", err
	}
	for _, config := range described[0].Configs {
		if config.Key == "retention.ms" {
			return config.MaybeValue() + " " + config.Source.String(), described[0].Err
		}
	}
	return "", errors.New("retention.ms is not described")
}

func (f *franz) alter(name string, op kadm.IncrementalOp, value string) error {
	ctx, cancel := limited()
	defer cancel()
	answers, err := f.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: op, Name: "retention.ms", Value: &value}}, name)
	if err != nil {
		return err
	}
	return answers[0].Err
}

func (f *franz) configs() error {
	first := "1000000"
	name, err := f.topic("configs", 1, map[string]*string{"retention.ms": &first})
	if err != nil {
		return err
	}
	is := func(wanted string) error {
		return soon(func() error {
			seen, err := f.retention(name)
			return firstError(err, expect(seen, wanted))
		})
	}
	return firstError(
		is("1000000 DYNAMIC_TOPIC_CONFIG"),
		f.alter(name, kadm.SetConfig, "2000000"),
		is("2000000 DYNAMIC_TOPIC_CONFIG"),
		f.alter(name, kadm.DeleteConfig, ""),
		is("604800000 DEFAULT_CONFIG"),
		failsWith(kerr.InvalidConfig, f.alter(name, kadm.SetConfig, "soon")),
	)
}

func (f *franz) tooLarge() error {
	small := "10000"
	name, err := f.topic("too-large", 1, map[string]*string{"max.message.bytes": &small})
	if err != nil {
		return err
	}
	large := record{nil, make([]byte, 20_000), nil, baseMs}
	_, err = f.produce(name, []record{large}, kgo.ProducerBatchCompression(kgo.NoCompression()))
	return firstError(failsWith(kerr.MessageTooLarge, err), f.roundTrip(name, records()[:1]))
}

func (f *franz) cluster() error {
	ctx, cancel := limited()
	defer cancel()
	found, err := f.admin.BrokerMetadata(ctx)
	return firstError(
		err,
		expect(found.Cluster == "", false),
		expect(slices.Contains(found.Brokers.NodeIDs(), found.Controller), true),
	)
}

func (f *franz) transactional(tx string, timeout time.Duration) *kgo.Client {
	return f.client(kgo.TransactionalID(f.prefix+"-"+tx), kgo.TransactionTimeout(timeout))
}

// Initialises the producer, which franz-go does with its first transaction otherwise.
func begun(client *kgo.Client) error {
	ctx, cancel := limited()
	defer cancel()
	_, _, err := client.ProducerID(ctx)
	return err
}

func inTransaction(client *kgo.Client, end kgo.TransactionEndTry, made ...*kgo.Record) error {
	ctx, cancel := limited()
	defer cancel()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, made...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, end)
}

// Offsets and values, from the beginning.
func (f *franz) read(topic string, partition int32, count int, isolation kgo.IsolationLevel) ([]string, error) {
	client := f.client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(isolation),
	)
	defer client.Close()
	seen, err := polled(client, count)
	var told []string
	for _, one := range seen {
		told = append(told, fmt.Sprint(one.Offset, " ", string(one.Value)))
	}
	return told, err
}

func (f *franz) transactions() error {
	name, err := f.topic("transactions", 3, nil)
	if err != nil {
		return err
	}
	producer := f.transactional("tx", time.Minute)
	defer producer.Close()
	for _, one := range []struct {
		letter string
		end    kgo.TransactionEndTry
	}{{"c", kgo.TryCommit}, {"a", kgo.TryAbort}, {"d", kgo.TryCommit}} {
		var made []*kgo.Record
		for partition := range int32(3) {
			value := []byte(fmt.Sprint(one.letter, partition))
			made = append(made, &kgo.Record{Topic: name, Partition: partition, Value: value})
		}
		if err := inTransaction(producer, one.end, made...); err != nil {
			return err
		}
	}
	for partition := range int32(3) {
		committed, err := f.read(name, partition, 2, kgo.ReadCommitted())
		if err != nil {
			return err
		}
		all, err := f.read(name, partition, 3, kgo.ReadUncommitted())
		c, a, d := fmt.Sprint("0 c", partition), fmt.Sprint("2 a", partition), fmt.Sprint("4 d", partition)
		if err := firstError(err, expect(committed, []string{c, d}), expect(all, []string{c, a, d})); err != nil {
			return err
		}
	}
	return nil
}

func isFenced(err error) error {
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		return nil
	}
	return fmt.Errorf("it is not fenced: %v", err)
}

func (f *franz) fencing() error {
	name, err := f.topic("fencing", 1, nil)
	if err != nil {
		return err
	}
	old, newer := f.transactional("fenced", time.Minute), f.transactional("fenced", time.Minute)
	defer old.Close()
	defer newer.Close()
	if err := firstError(begun(old), begun(newer)); err != nil {
		return err
	}
	if err := isFenced(inTransaction(old, kgo.TryCommit, &kgo.Record{Topic: name, Value: []byte("old")})); err != nil {
		return err
	}
	if err := inTransaction(newer, kgo.TryCommit, &kgo.Record{Topic: name, Value: []byte("new")}); err != nil {
		return err
	}
	seen, err := f.read(name, 0, 1, kgo.ReadUncommitted())
	slow := f.transactional("slow", 900_001*time.Millisecond)
	defer slow.Close()
	return firstError(err, expect(seen, []string{"0 new"}), failsWith(kerr.InvalidTransactionTimeout, begun(slow)))
}

func (f *franz) transactionTimeout() error {
	name, err := f.topic("transaction-timeout", 1, nil)
	if err != nil {
		return err
	}
	ctx, cancel := limited()
	defer cancel()
	producer := f.transactional("late", 3*time.Second)
	defer producer.Close()
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	if err := producer.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte("late")}).FirstErr(); err != nil {
		return err
	}
	if _, err := f.produce(name, []record{{nil, []byte("behind"), nil, baseMs}}); err != nil {
		return err
	}
	seen, err := f.read(name, 0, 1, kgo.ReadCommitted())
	return firstError(err, expect(seen, []string{"1 behind"}), isFenced(producer.EndTransaction(ctx, kgo.TryCommit)))
}
